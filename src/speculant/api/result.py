"""The output of a request: pieces as they are generated, and the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from speculant.api.detokenizer import LEFT_OUT, Detokenizer, SpecialTokens
from speculant.core.logprobs import TokenLogprobs
from speculant.core.model_engine import RequestCache
from speculant.core.stats import Stats
from speculant.core.tree import Int32
from speculant.decoding.prefill import prefill
from speculant.decoding.sequence import Round, Sequence, Source
from speculant.decoding.step import DecodingComponents, step

if TYPE_CHECKING:
    from speculant.engines.hf.sampling.sampler import HostSampler

CUT = "A text reached its maximum of new tokens before it matched its constraint; allow more (max_new_tokens)."


@dataclass(frozen=True, slots=True)
class Piece:
    """The text that one round added: its text, and for each token the id, its text and its source.

    Attributes:
        logprobs: per token, if requested; else None.
        rounds: the draft and the walk, if `Sequence.rounds` is a list; empty for the first token, which the prompt's
            pass yields.
        seconds: time since the prompt was first read, if `Sequence.rounds` is a list.
    """

    text: str
    tokens: list[int]
    texts: list[str]
    sources: list[Source]
    logprobs: list[TokenLogprobs] | None = None
    rounds: tuple[Round, ...] = ()
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Result:
    """A generated text, copied from its sequence, since callers keep it after the request, and may change it.

    Attributes:
        text: the new text, without the prompt; empty without a tokenizer.
        ids: the new token ids, end of text included.
        sources: source of each token: plain, accepted draft or bonus token.
        finish_reason: "stop", "length", "error", or "unfinished" if the stream was left early.
        logprobs: log-probability of each token and of the most probable ones; None unless requested.
        prompt_logprobs: the same for each prompt token, None for the first; None unless requested.
        stats: decoding statistics.
        cache: cache of everything but the last token, for a next turn's `cache=`; None if a batch kept none.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    finish_reason: str = "unfinished"
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    stats: Stats
    cache: Any = None


@dataclass(frozen=True, slots=True)
class _Taken:
    """What the pieces so far held. It is replaced as a whole, so an interrupted `take` can be repeated from it.

    Attributes:
        count: number of tokens.
        text: their text.
        detokenizer: converts the tokens that follow.
    """

    count: int
    text: str
    detokenizer: Detokenizer


class Generation:
    """A request: the sequence that is being decoded, and its growing text.

    Attributes:
        sequence: decoding state.
        target: the sequence's cache.
        result: the text so far; its finish_reason is "error" if the request failed.
        error: why it failed, or None.
        done: whether it is finished.
        owner: only requests of the same owner share prompt prefixes; "" is an owner common to all.
        takes_prefix: whether its prompt may start with cached rows; set by its batch.
    """

    def __init__(
        self,
        sequence: Sequence,
        sampler: HostSampler,
        *,
        target: RequestCache,
        tokenizer: Any = None,
        streamer: Any = None,
        chunk: int | None = None,
        special: SpecialTokens = LEFT_OUT,
    ) -> None:
        """Prepare the text of a sequence.

        Args:
            sequence: a sequence that is not decoded yet.
            sampler: the sequence's sampler.
            target: the sequence's cache.
            tokenizer: tokenizer for its text, or None.
            streamer: a transformers streamer that receives every token, or None.
            chunk: maximum prompt tokens per pass; None for no limit.
            special: treatment of special tokens in the text.
        """
        self.sequence, self.sampler, self.target, self.chunk = sequence, sampler, target, chunk
        self.result = Result(
            stats=sequence.stats,
            cache=target.cache,
            logprobs=[] if sequence.records_logprobs else None,
            prompt_logprobs=sequence.prompt_logprobs if sequence.records_prompt else None,
        )
        self.error: BaseException | None = None
        self.done = False
        self.takes_prefix = False
        self._streamer = streamer
        self._taken = _Taken(0, "", Detokenizer(tokenizer, sequence.start.prompt[-4:].tolist(), special=special))

    def show_marks(self, marks: Mapping[int, str]) -> None:
        """Make special tokens part of the text; `marks` has their texts, by id."""
        self._taken.detokenizer.marks = marks

    @property
    def owner(self) -> str:
        """The owner whose cached prefixes it may use, and provide."""
        return self.sequence.start.tenant

    @property
    def left(self) -> bool:
        """Whether nothing more will be decoded."""
        return self.done or self.sequence.ended or self.error is not None or self.sequence.error is not None

    @property
    def shareable(self) -> bool:
        """Whether other texts may reuse this one's cached rows."""
        return not (self.error or self.sequence.error) and self.target.length > 0 and self.target.shares_prefixes

    @property
    def prompt(self) -> Int32:
        """The tokens of the prompt's rows, including those of media, which drafters do not read."""
        media = self.target.media
        return self.sequence.start.prompt if media is None else media.tokens

    def shares(self, other: Generation) -> bool:
        """Return whether both may reuse each other's rows: they have the same owner and media."""
        digests = ["" if each.target.media is None else each.target.media.digest for each in (self, other)]
        return self.owner == other.owner and digests[0] == digests[1]

    def cached(self) -> Int32:
        """Return the tokens that are cached and committed, including the prompt."""
        tokens = np.concatenate([self.prompt, np.array(self.sampler.tokens, np.int32)])
        return tokens[: self.target.length]

    def take(self) -> Piece | None:
        """Return what was committed since the last call and add it to the result; None if nothing was.

        If an error or an interrupt ends it at any point, the next call does all of it again.
        """
        sequence, result, taken = self.sequence, self.result, self._taken
        known, committed = taken.count, len(sequence.sources)
        if known == committed:
            return None
        tokens, sources = sequence.sampler.tokens[known:committed], sequence.sources[known:committed]
        logprobs = sequence.logprobs[known:committed] if result.logprobs is not None else None
        detokenizer, stopped = taken.detokenizer.copy(), sequence.ended and self.sampler.stopped
        texts = [detokenizer.push(token) for token in (tokens[:-1] if stopped else tokens)]
        if stopped:
            texts.append(detokenizer.push_end(tokens[-1]))
        if sequence.ended:
            texts[-1] += detokenizer.flush()
        text, reason = "".join(texts), "stop" if stopped else "length"
        if sequence.ended and reason == "length":
            self._note_cut()
        result.ids[known:] = tokens  # overwrites what an interrupted earlier call left, as the next lines do
        result.sources[known:] = sources
        if result.logprobs is not None and logprobs is not None:
            result.logprobs[known:] = logprobs
        result.text = taken.text + text
        if sequence.ended:
            result.finish_reason = reason
        self._taken = _Taken(committed, result.text, detokenizer)
        if sequence.rounds is None:
            return Piece(text, tokens, texts, sources, logprobs)
        rounds, sequence.rounds = tuple(sequence.rounds), []
        return Piece(text, tokens, texts, sources, logprobs, rounds, sequence.stats.seconds)

    def _note_cut(self) -> None:
        """Note that a text of maximum length does not match its constraint."""
        constraint, notes = self.sequence.start.constraint, self.result.stats.notes
        if constraint is not None and CUT not in notes and not constraint.complete(self.sampler.tokens):
            notes.append(CUT)

    def put(self, piece: Piece) -> None:
        """Pass a piece to the streamer, token by token."""
        if self._streamer is not None:
            for token in piece.tokens:
                self._streamer.put(torch.tensor([token]))
            if self.sequence.ended:
                self._streamer.end()

    def fail(self, error: BaseException) -> Piece:
        """End the request because of an error; its text so far stays in the result.

        Returns:
            What an interrupted `take` left out; an empty piece if it left out nothing.
        """
        self.sequence.fail(error)
        rest = None
        with suppress(Exception):  # if the text itself failed, the result ends before it
            rest = self.take()
        if self.error is None:
            self.error, self.result.finish_reason = error, "error"
        return rest or Piece("", [], [], [])


class Stream:
    """Iterates over the pieces of a text; `result` is what there is so far, complete in the end."""

    def __init__(self, generation: Generation, parts: DecodingComponents) -> None:
        self._generation, self._parts = generation, parts

    @property
    def result(self) -> Result:
        """The result so far."""
        return self._generation.result

    def __iter__(self) -> Iterator[Piece]:
        """Decode, yielding each round's piece.

        Raises:
            OutOfMemoryError: a pass does not fit.
            UsageError: this request was decoded before.
        """
        generation, sequence = self._generation, self._generation.sequence
        sequence.claim()
        try:
            while not sequence.ended:
                error = self._advance()
                piece = generation.take()
                if piece is not None:
                    try:
                        generation.put(piece)
                    finally:  # it is in the cache, so it must be yielded
                        yield piece
                if error is not None:
                    raise error
        finally:
            try:
                generation.take()  # an interrupt may have left a cached round's tokens out of the result
            finally:
                sequence.close()
                generation.done = True
                if sequence.sizing is not None:
                    sequence.stats.sizes = self._parts.sizing.reason(sequence.sizing)

    def _advance(self) -> BaseException | None:
        """Read part of the prompt or run a round; return an exception to raise after yielding what was committed."""
        sequence = self._generation.sequence
        try:
            with torch.no_grad():
                if sequence.session is None:
                    prefill([sequence], self._parts, maximum=[self._generation.chunk])
                else:
                    step([sequence], self._parts)
        except BaseException as error:
            return error
        return sequence.error
