"""One text in the making: its rounds, the pieces they add, and the result.

A text is a stream that may be left at any time; what it said until then is in its result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from speculant.api.detokenizer import Detokenizer
from speculant.core.drafter import Drafter
from speculant.core.engine import Sampler
from speculant.core.stats import Stats
from speculant.decoding.step import Decoding, Round, Source, decode
from speculant.engines.hf.sampler import Request, make_sampler
from speculant.engines.hf.target import TransformersTarget
from speculant.sizing.policy import Sizing


class Run:
    """One request on its way."""

    def __init__(
        self,
        target: TransformersTarget,
        request: Request,
        drafter: Drafter,
        *,
        seed: int,
        streamer: Any,
        stats: Stats,
        sampler: Sampler | None = None,
    ) -> None:
        """Put a request together; without a `sampler` it gets the one that fits."""
        self.target, self.request, self.stats = target, request, stats
        self.finish_reason = ""
        self._streamer = streamer
        prompt = target.ids[0].to(torch.int32).cpu().numpy().astype(np.int32)
        self.decoding = Decoding(target, sampler or make_sampler(request), drafter, prompt, seed=seed, stats=stats)

    def rounds(self, sizing: Sizing) -> Generator[Round]:
        """Decode; the finish reason is set before the last round is given out."""
        steps = decode(self.decoding, sizing)
        try:
            while True:
                with torch.no_grad():
                    done = next(steps, None)
                if done is None:
                    break
                try:
                    self.finish()
                finally:  # the cache has the round, so the text must, even where the streamer fails
                    yield done
        finally:
            steps.close()

    def finish(self) -> None:
        """Where the last round completed the text, say why it ended."""
        if self.request.ended:
            self.finish_reason = "stop" if self.request.stopped else "length"
            if self._streamer is not None:
                self._streamer.end()


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
        finish_reason: "stop", "length", "error", or "unfinished" if the stream was left early.
        stats: what happened.
        cache: the cache of everything but the last token, for a next turn's `cache=`; None where a batch kept none.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    finish_reason: str = "unfinished"
    stats: Stats
    cache: Any = None


class Text:
    """A text as it grows, round by round."""

    def __init__(self, run: Run, tokenizer: Any) -> None:
        self.result = Result(stats=run.stats, cache=run.target.cache)
        self._run = run
        self._tokens = Detokenizer(tokenizer, run.target.ids[0, -4:].tolist())

    def add(self, done: Round) -> Piece:
        """Take in a round that the run has settled; return what it adds."""
        result = self.result
        texts = [self._tokens.push(token) for token in done.tokens]
        if self._run.finish_reason:
            texts[-1] += self._tokens.flush()
            result.finish_reason = self._run.finish_reason
        result.ids += done.tokens
        result.sources += done.sources
        result.text += "".join(texts)
        return Piece("".join(texts), done.tokens, texts, done.sources)


class Stream:
    """Iterates over the pieces of a text; `result` is what there is so far, complete in the end."""

    def __init__(self, run: Run, tokenizer: Any, sizing: Sizing) -> None:
        self._run, self._sizing, self._text = run, sizing, Text(run, tokenizer)

    @property
    def result(self) -> Result:
        return self._text.result

    def __iter__(self) -> Iterator[Piece]:
        rounds = self._run.rounds(self._sizing)
        try:
            for done in rounds:
                yield self._text.add(done)
        finally:
            rounds.close()
