"""Embeddings of texts: the last layer's hidden states after the final norm, pooled to a vector of length 1.

Texts are read like prompts, several per pass and long ones in chunks, and nothing is decoded. Newly added groups of
texts take turns with earlier ones, so that a large group does not delay a small one (start-time fair queueing, Goyal et
al., 1996, with a text as the unit of service).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch

from speculant.api.prompt_queue import CPU_CHUNK, GPU_CHUNK
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from speculant.core.model_engine import ModelEngine, RequestCache

Pooling = Literal["mean", "last"]
_NO_STATES = (
    "this model's passes return no hidden states, from which embeddings are made. Serve a decoder of transformers, "
    "or a GGUF file on Speculant's own passes."
)
_NEEDS = {
    "mean": RequestedOutputs(hidden_layers=(-1,), prompt=True, always=True),
    "last": RequestedOutputs(hidden_layers=(-1,), always=True),
}


class EmbeddedText:
    """A text to embed.

    Attributes:
        ids: its tokens.
        pooling: "mean" of all tokens, or the "last" one.
        vector: Float32[D] of length 1, once computed.
        error: why it failed, or None.
    """

    def __init__(self, ids: Sequence[int], pooling: Pooling) -> None:
        self.ids, self.pooling = ids, pooling
        self.vector: torch.Tensor | None = None
        self.error: BaseException | None = None
        self.cache: RequestCache | None = None  # set while it is read in parts

    @property
    def done(self) -> bool:
        """Whether it is finished or failed."""
        return self.vector is not None or self.error is not None

    @property
    def unread(self) -> int:
        """The number of tokens still to read."""
        return len(self.ids) if self.cache is None else self.cache.unread

    def release(self) -> None:
        """Free its cache."""
        if self.cache is not None:
            self.cache.release()
            self.cache = None


class Embedder:
    """Reads texts in passes of one model. Not thread-safe.

    Attributes:
        size: vector dimension D.
    """

    def __init__(self, engine: ModelEngine, *, chunk: int | None = None) -> None:
        """Take a model.

        Args:
            engine: engine of the model.
            chunk: maximum tokens per pass; None for a value that suits the device.

        Raises:
            UnsupportedError: the engine provides no hidden states.
        """
        if not engine.capabilities.hidden_layers:
            raise UnsupportedError(_NO_STATES)
        from speculant.engines.hf.views.target_parts import HFTargetParts  # here, since llama.cpp does not need it

        try:
            parts = HFTargetParts(engine.model)
        except UnsupportedError as error:
            raise UnsupportedError(_NO_STATES) from error
        self.size, self._norm, self._engine = parts.hidden_size, parts.norm, engine
        self._chunk = chunk or (CPU_CHUNK if engine.device.type == "cpu" else GPU_CHUNK)
        self._unread: list[tuple[int, int, EmbeddedText]] = []  # a heap, by turn and number
        self._turn, self._numbers = 0, itertools.count()

    def __len__(self) -> int:
        """Return the number of texts that are not finished."""
        return len(self._unread)

    def add(self, texts: Sequence[EmbeddedText]) -> None:
        """Queue texts, none of them empty; they take turns with others."""
        for place, text in enumerate(texts):
            if not text.ids:
                raise UsageError("an empty text has no embedding; leave it out.")
            heapq.heappush(self._unread, (self._turn + place, next(self._numbers), text))

    def remove(self, texts: Sequence[EmbeddedText]) -> None:
        """Remove texts from the queue."""
        gone = set(texts)
        self._unread = [each for each in self._unread if each[2] not in gone]
        heapq.heapify(self._unread)
        for text in gone:
            text.release()

    def step(self) -> list[EmbeddedText]:
        """Run a pass over waiting texts; return those that finished or failed."""
        chosen = self._choose()
        if not chosen:
            return []
        texts = [text for _, _, text in chosen]
        with torch.no_grad():
            self._try(texts)
        for each in chosen:
            if not each[2].done:
                heapq.heappush(self._unread, each)
        return [text for text in texts if text.done]

    def _choose(self) -> list[tuple[int, int, EmbeddedText]]:
        """Take the next pass's texts: the first, or a chunk of it, and others with the same pooling that fit whole."""
        chosen, count = list[tuple[int, int, EmbeddedText]](), 0
        while self._unread:
            first, text = chosen[0][2] if chosen else None, self._unread[0][2]
            fits = count + text.unread <= self._chunk and text.cache is None
            if first is not None and not (fits and first.cache is None and first.pooling == text.pooling):
                break
            chosen.append(heapq.heappop(self._unread))
            count += text.unread
        if chosen:
            self._turn = chosen[0][0]
        return chosen

    def _read(self, texts: Sequence[EmbeddedText]) -> None:
        """Read further tokens of texts in one pass."""
        self._engine.probe()
        device = self._engine.device
        for text in texts:
            if text.cache is None:
                text.cache = self._engine.open(torch.tensor([list(text.ids)], device=device))
        caches = [text.cache for text in texts]
        passes = self._engine.prefill([(cache, self._chunk) for cache in caches], _NEEDS[texts[0].pooling])
        for text, result in zip(texts, passes, strict=True):
            if result is not None:
                states = self._norm(result.hidden[:, 0]).float()
                pooled = states.mean(0) if text.pooling == "mean" else states[-1]
                text.vector = torch.nn.functional.normalize(pooled, dim=0).cpu()
                text.release()

    def _try(self, texts: Sequence[EmbeddedText]) -> None:
        """Read further tokens of texts; if that fails for several, of one text at a time."""
        try:
            self._read(texts)
        except Exception as error:
            for text in texts:
                text.release()
                text.vector = None
            if len(texts) == 1:
                texts[0].error = error
                return
            for text in texts:
                self._try([text])


def shorten(vector: torch.Tensor, dimensions: int) -> torch.Tensor:
    """Return the first `dimensions` of a vector, normalised to length 1."""
    return torch.nn.functional.normalize(vector[:dimensions], dim=0)
