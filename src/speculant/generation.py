"""One text in the making: its rounds, the pieces they add, and the result.

A text is a stream that may be left at any time; what it said until then is in its result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from speculant.decoding import Round, Source, decode
from speculant.drafters.base import Drafter
from speculant.sizing import Sizing
from speculant.stats import Stats
from speculant.targets.sampling import Request, make_sampler
from speculant.targets.transformers import TransformersTarget
from speculant.text import Detokenizer


class Run:
    """One request on its way."""

    def __init__(
        self,
        target: TransformersTarget,
        request: Request,
        drafter: Drafter,
        *,
        sizing: Sizing,
        seed: int,
        streamer: Any,
        stats: Stats,
    ) -> None:
        self.target, self.request, self.stats = target, request, stats
        self.finish_reason = ""
        self._drafter, self._sizing, self._seed, self._streamer = drafter, sizing, seed, streamer

    def rounds(self) -> Generator[Round]:
        """Decode; the finish reason is set before the last round is given out."""
        request = self.request
        prompt = request.ids[0].to(torch.int32).cpu().numpy().astype(np.int32)
        steps = decode(
            self.target,
            make_sampler(request),
            self._drafter,
            prompt,
            sizing=self._sizing,
            seed=self._seed,
            stats=self.stats,
        )
        while True:
            with torch.no_grad():
                done = next(steps, None)
            if done is None:
                break
            if request.ended:
                last = done.tokens[-1]
                self.finish_reason = "length" if request.room() <= 0 and last not in request.ending else "stop"
                if self._streamer is not None:
                    self._streamer.end()
            yield done


@dataclass(frozen=True, slots=True)
class Piece:
    """What one round added to the text: its text, and per token the id, its text and where it came from."""

    text: str
    tokens: list[int]
    texts: list[str]
    sources: list[Source]


@dataclass(slots=True, kw_only=True)
class Result:
    """A generated text.

    Attributes:
        text: the new text, without the prompt; empty without a tokenizer.
        ids: the new token ids, end of text included.
        sources: per token, whether it was plain, an accepted draft or a bonus token.
        finish_reason: "stop", "length", or "unfinished" if the stream was left early.
        stats: what happened.
        cache: the cache of everything but the last token, for a next turn's `cache=`.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    finish_reason: str = "unfinished"
    stats: Stats
    cache: Any = None


class Stream:
    """Iterates over the pieces of a text; `result` is what there is so far, complete in the end."""

    def __init__(self, run: Run, tokenizer: Any) -> None:
        self.result = Result(stats=run.stats, cache=run.target.cache)
        self._run = run
        self._text = Detokenizer(tokenizer, run.request.ids[0, -4:].tolist())

    def __iter__(self) -> Iterator[Piece]:
        result, rounds = self.result, self._run.rounds()
        try:
            for done in rounds:
                texts = [self._text.push(token) for token in done.tokens]
                if self._run.finish_reason:
                    texts[-1] += self._text.flush()
                    result.finish_reason = self._run.finish_reason
                result.ids += done.tokens
                result.sources += done.sources
                result.text += "".join(texts)
                yield Piece("".join(texts), done.tokens, texts, done.sources)
        finally:
            rounds.close()
