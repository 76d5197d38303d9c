"""The same request without drafts: by the same loop, and by transformers' own `generate`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from speculant.api.requests import Message
    from speculant.api.speculator import Speculator

WARM_UP = "one two one two one two"
WARM_UP_TOKENS, WARM_UP_NODES = 8, 8  # so few tokens would end before sizes of their own choice have grown


@dataclass(frozen=True, slots=True)
class Timed:
    """New token ids and the seconds they took."""

    ids: list[int]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Speed, prompt included."""
        return len(self.ids) / self.seconds if self.seconds else 0.0


class Baselines:
    """Decodes a speculator's requests without drafts."""

    def __init__(self, speculator: Speculator, options: dict[str, Any]) -> None:
        """Prepare both, with the options of `Speculator.stream`."""
        self._speculator, self._options = speculator, options
        self._plain = type(speculator).from_transformers(
            speculator.model, speculator.tokenizer, method="none", fast=speculator.fast
        )

    def warm_up(self, memory: str | None = None) -> None:
        """Decode a few tokens each way, the method with a memory of its own, so that nothing is learned.

        Args:
            memory: the file that the speculator began with; what a loaded table needs compiled is compiled here.
        """
        speculator, short = self._speculator, self._options | {"max_new_tokens": WARM_UP_TOKENS}
        same = type(speculator).from_transformers(
            speculator.model,
            speculator.tokenizer,
            method=speculator.method,
            nodes=WARM_UP_NODES,
            memory=memory,
            memory_limit=sys.maxsize,
            fast=speculator.fast,
        )
        warm = Baselines(speculator, short)
        warm.plain(WARM_UP)
        same.generate(WARM_UP, **short)
        warm.reference(WARM_UP)

    def plain(self, prompt: str | Sequence[Message]) -> Timed:
        """Decode by the same loop, one token a pass."""
        result = self._plain.generate(prompt, **self._options)
        return Timed(result.ids, result.stats.seconds)

    def reference(self, prompt: str | Sequence[Message]) -> Timed:
        """Decode by `model.generate`, with the random stream that the seed gives."""
        import torch

        from speculant.engines.hf.generate_capture import sampling_options

        speculator, options = self._speculator, self._options
        model, tokenizer = speculator.model, speculator.tokenizer
        read = tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else speculator.encode_chat(prompt)
        ids = torch.tensor([read], device=model.device)
        positions = speculator.engine.capabilities.positions
        room = options["max_new_tokens"] if positions is None else positions - ids.shape[1]
        chosen = sampling_options(options["temperature"], options["top_p"], options["top_k"])
        if options["stop"]:
            chosen |= {"stop_strings": options["stop"], "tokenizer": tokenizer}
        with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
            if options["seed"] is not None:
                torch.manual_seed(options["seed"])
            start = time.perf_counter()
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=min(room, options["max_new_tokens"]),
                **chosen,
            )
            new: list[int] = output[0, ids.shape[1] :].tolist()
            seconds = time.perf_counter() - start
        return Timed(new, seconds)
