"""What a request yields: pieces as they come, and the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from speculant.api.detokenizer import LEFT_OUT, Detokenizer, SpecialTokens
from speculant.core.logprobs import TokenLogprobs
from speculant.core.model_engine import RequestCache
from speculant.core.stats import Stats
from speculant.core.tree import Int32
from speculant.decoding.sequence import Round, Sequence, Source
from speculant.decoding.step import DecodingComponents, prefill, step

if TYPE_CHECKING:
    from speculant.engines.hf.sampling.sampler import HostSampler

CUT = "A text ends at its most new tokens, before it matches its constraint; allow more (max_new_tokens)."


@dataclass(frozen=True, slots=True)
class Piece:
    """What one round added to the text: its text, and per token the id, its text and where it came from.

    Attributes:
        logprobs: per token, where they were asked for; else None.
        rounds: the draft and the walk, where `Sequence.rounds` is a list; none for the first token, which the prompt's
            pass yields.
        seconds: since the prompt was first read, where `Sequence.rounds` is a list.
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
    """A generated text.

    Attributes:
        text: the new text, without the prompt; empty without a tokenizer.
        ids: the new token ids, end of text included.
        sources: per token, whether it was plain, an accepted draft or a bonus token.
        finish_reason: "stop", "length", "error", or "unfinished" if the stream was left early.
        logprobs: per token, its log-probability and those of the most probable ones; None unless they were asked for.
        prompt_logprobs: the same per token of the prompt, None for the first; None unless they were asked for.
        stats: what happened.
        cache: the cache of everything but the last token, for a next turn's `cache=`; None where a batch kept none.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    finish_reason: str = "unfinished"
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    stats: Stats
    cache: Any = None


class Generation:
    """A request: the sequence that is decoded, and its text as it grows.

    Attributes:
        sequence: the state of its decoding.
        target: its cache.
        result: what there is of its text so far; its finish_reason is "error" if the request failed.
        error: why it failed, or None.
        done: whether nothing more will come.
        owner: whose requests share what their prompts begin with; "" for everybody's.
        takes_prefix: whether its prompt may begin with cached rows; its batch says so.
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
            sequence: not decoded yet.
            sampler: the sequence's own.
            target: the sequence's cache.
            tokenizer: for its text, or None.
            streamer: a transformers streamer that every token is put to, or None.
            chunk: the most prompt tokens to read in a pass, or None for any number.
            special: what becomes of special tokens in the text.
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
        self._detokenizer = Detokenizer(tokenizer, sequence.start.prompt[-4:].tolist(), special=special)

    def show_marks(self, marks: Mapping[int, str]) -> None:
        """Make special tokens part of the text; `marks` has their texts, by their ids."""
        self._detokenizer.marks = marks

    @property
    def owner(self) -> str:
        """Whose cached prefixes it may begin with, and may give."""
        return self.sequence.start.tenant

    @property
    def left(self) -> bool:
        """Whether nothing more will be decoded."""
        return self.done or self.sequence.ended or self.error is not None or self.sequence.error is not None

    @property
    def shareable(self) -> bool:
        """Whether other texts may begin with what is cached of this one."""
        return not (self.error or self.sequence.error) and self.target.length > 0 and self.target.shares_prefixes

    @property
    def prompt(self) -> Int32:
        """The tokens of the prompt's rows, those of media included, which drafters do not read."""
        media = self.target.media
        return self.sequence.start.prompt if media is None else media.tokens

    def shares(self, other: Generation) -> bool:
        """Return whether both may begin with rows of each other: they have one owner and the same media."""
        digests = ["" if each.target.media is None else each.target.media.digest for each in (self, other)]
        return self.owner == other.owner and digests[0] == digests[1]

    def cached(self) -> Int32:
        """Return the tokens that are cached and committed, prompt included."""
        tokens = np.concatenate([self.prompt, np.array(self.sampler.tokens, np.int32)])
        return tokens[: self.target.length]

    def take(self) -> Piece | None:
        """Return what was committed since the last call, None if nothing was; it is in the result."""
        sequence, result = self.sequence, self.result
        known, committed = len(result.sources), len(sequence.sources)
        if known == committed:
            return None
        tokens, sources = sequence.sampler.tokens[known:committed], sequence.sources[known:committed]
        result.ids[known:] = tokens  # what an interrupt left of an earlier call is overwritten
        result.sources[known:] = sources
        logprobs = sequence.logprobs[known:committed] if result.logprobs is not None else None
        if result.logprobs is not None and logprobs is not None:
            result.logprobs[known:] = logprobs
        stopped = sequence.ended and self.sampler.stopped
        texts = [self._detokenizer.push(token) for token in (tokens[:-1] if stopped else tokens)]
        if stopped:
            texts.append(self._detokenizer.push_end(tokens[-1]))
        if sequence.ended:
            texts[-1] += self._detokenizer.flush()
            result.finish_reason = "stop" if stopped else "length"
            self._note_cut()
        result.text += "".join(texts)
        if sequence.rounds is None:
            return Piece("".join(texts), tokens, texts, sources, logprobs)
        rounds, sequence.rounds = tuple(sequence.rounds), []
        return Piece("".join(texts), tokens, texts, sources, logprobs, rounds, sequence.stats.seconds)

    def _note_cut(self) -> None:
        """Note a text that its length ended before it matched its constraint."""
        constraint, notes = self.sequence.start.constraint, self.result.stats.notes
        cut = constraint is not None and self.result.finish_reason == "length" and CUT not in notes
        if cut and constraint is not None and not constraint.complete(self.sampler.tokens):
            notes.append(CUT)

    def put(self, piece: Piece) -> None:
        """Hand a piece to the streamer, token by token."""
        if self._streamer is not None:
            for token in piece.tokens:
                self._streamer.put(torch.tensor([token]))
            if self.sequence.ended:
                self._streamer.end()

    def fail(self, error: BaseException) -> None:
        """End the request because of an error; its text so far stays in the result."""
        self.sequence.fail(error)
        if self.error is None:
            self.error, self.result.finish_reason = error, "error"


class Stream:
    """Iterates over the pieces of a text; `result` is what there is so far, complete in the end."""

    def __init__(self, generation: Generation, parts: DecodingComponents) -> None:
        self._generation, self._parts = generation, parts

    @property
    def result(self) -> Result:
        """What there is so far."""
        return self._generation.result

    def __iter__(self) -> Iterator[Piece]:
        """Decode, and yield each round's piece.

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
                    finally:  # the cache has it, so whoever iterates must have it
                        yield piece
                if error is not None:
                    raise error
        finally:
            generation.take()  # an interrupt may have kept a round's tokens from the result; the cache has them
            sequence.close()
            generation.done = True
            if sequence.sizing is not None:
                sequence.stats.sizes = self._parts.sizing.reason(sequence.sizing)

    def _advance(self) -> BaseException | None:
        """Read a part of the prompt or run a round; return what it raised, to be raised after what it committed."""
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
