"""Several requests decoded together: drafts of each, one target pass for all, and every text walks its own way.

    each session proposes a tree; the nodes of the pass go where they gain most
    the target runs one pass over the roots and nodes of all
    each verifier walks its tree; each text grows by as much as its draft was right, and leaves when it ends
    seats that are free go to requests that wait; their prompts are read

A request has its own cache, options, random stream and stop, and says what it would say alone. Requests join and leave
between rounds (continuous batching: Yu et al., Orca, OSDI 2022). One that fails leaves the others be.

    with speculator.batch() as batch:
        tickets = [batch.add(prompt, max_new_tokens=64) for prompt in prompts]
        for ticket, piece in batch:
            ...
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from speculant.api.result import Piece, Result, Run, Text
from speculant.core.errors import BatchError, OutOfMemoryError, UsageError
from speculant.core.stats import BatchStats
from speculant.core.tree import DraftTree
from speculant.decoding.step import Round
from speculant.engines.hf.batch_pass import RaggedPass
from speculant.sizing.acceptance import Values
from speculant.sizing.batch import BatchSizing

NOTHING = Piece("", [], [], [])


class Ticket:
    """A request of a batch.

    Attributes:
        result: what there is of its text so far; its finish_reason is "error" if the request failed.
        error: why it failed, or None.
        done: whether it has left the batch.
    """

    def __init__(self, run: Run, text: Text, values: Values) -> None:
        self.run, self.text, self.values = run, text, values
        self.error: BaseException | None = None
        self.done = False

    @property
    def result(self) -> Result:
        return self.text.result


class Batch:
    """Decodes up to `size` requests at a time; more wait. Not for several threads, and it has the model to itself."""

    def __init__(
        self,
        prepare: Callable[..., Run],
        tokenizer: Any,
        ragged: RaggedPass,
        sizing: BatchSizing,
        values: Values,
        *,
        size: int,
        keep_caches: bool = False,
    ) -> None:
        """Begin an empty batch; `Speculator.batch` is the usual way in.

        Args:
            prepare: returns the request that a prompt and options make.
            tokenizer: for texts, or None.
            ragged: runs the passes.
            sizing: shares the nodes of a pass.
            values: what nodes have been worth so far; every request goes its own way from there, and teaches it.
            size: the most requests in a pass.
            keep_caches: whether results hold their caches for a next turn. Those of many requests fill the memory.

        Raises:
            UsageError: there would be no room.
        """
        if size < 1:
            raise UsageError(f"a batch has room for 1 request or more, not {size}.")
        self._prepare, self._tokenizer, self._ragged, self._sizing = prepare, tokenizer, ragged, sizing
        self._values, self._size, self._keep_caches = values, size, keep_caches
        self._waiting: deque[Ticket] = deque()
        self._seated: list[Ticket] = []
        self._pieces: deque[tuple[Ticket, Piece]] = deque()  # not given out yet
        self._interrupt: BaseException | None = None
        self.stats = BatchStats(size=size)

    def __len__(self) -> int:
        """Return how many requests have not left yet."""
        return len(self._waiting) + len(self._seated)

    def add(self, prompt: Any, *, seed: int | None = None, **options: Any) -> Ticket:
        """Let a request wait for the next free seat.

        Args:
            prompt: as in `Speculator.stream`.
            seed: of its random stream; None draws one from torch's default stream, since a stream shared by several
                texts would give none of them what it says alone.
            options: as in `Speculator.stream`.

        Raises:
            PromptError, UnsupportedError, UsageError: it cannot be decoded; the others go on.
        """
        if seed is None:
            seed = int(torch.randint(1 << 62, (1,)))
        return self.take(self._prepare(prompt, seed=seed, **options))

    def take(self, run: Run) -> Ticket:
        """Let a request that is ready wait for the next free seat.

        Raises:
            UsageError: it is decoded elsewhere, or was.
        """
        run.decoding.claim()
        ticket = Ticket(run, Text(run, self._tokenizer), Values(self._values))
        self._waiting.append(ticket)
        return ticket

    def remove(self, ticket: Ticket) -> None:
        """Let a request leave before its end; what it said so far is in its result. One that has left stays as it is.

        Raises:
            UsageError: it is another batch's.
        """
        if ticket.done:
            return
        if ticket not in self._waiting and ticket not in self._seated:
            raise UsageError("this request is not in this batch; remove it from the one that it was added to.")
        self._leave(ticket)
        self._raise_interrupt()

    def close(self) -> None:
        """Let every request leave."""
        for ticket in [*self._waiting, *self._seated]:
            self._leave(ticket)
        self._raise_interrupt()

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[tuple[Ticket, Piece]]:
        """Decode until every request has left, those added meanwhile too; yield what each round adds to each text.

        Whoever stops early gets the rest of the round's pieces from the next iteration or step.
        """
        while self._pieces or len(self):
            if not self._pieces:
                self._advance()
            if self._pieces:
                yield self._pieces.popleft()

    def step(self) -> list[tuple[Ticket, Piece]]:
        """Run one round, then seat who waits; return what that added to each text, an empty piece where one failed.

        Raises:
            OutOfMemoryError: the pass, or the prompt of who is next, does not fit. Nothing is lost: `remove` a request,
                then go on.
            KeyboardInterrupt: it came. The request that it met, if any, has failed; the pieces of the others come with
                the next step.
        """
        self._advance()
        pieces = list(self._pieces)
        self._pieces.clear()
        return pieces

    def _advance(self) -> None:
        began = time.perf_counter()
        try:
            with torch.no_grad():
                if self._seated:
                    self._round()
                    self._raise_interrupt()
                self._seat()
        finally:
            self.stats.seconds += time.perf_counter() - began
            self.stats.notes = [self._ragged.note] if self._ragged.note else []

    def _seat(self) -> None:
        began = time.perf_counter()
        try:
            while self._waiting and len(self._seated) < self._size:
                ticket = self._waiting.popleft()
                self._seated.append(ticket)
                try:
                    done = ticket.run.decoding.begin()
                    self.stats.tokens += 1
                    self._grow(ticket, done)
                except BaseException as error:
                    if isinstance(error, OutOfMemoryError) and len(self._seated) > 1:
                        self._seated.remove(ticket)  # there may be room for it when others have left
                        self._waiting.appendleft(ticket)
                        raise
                    self._fail(ticket, error)
                if ticket.done or ticket.run.decoding.ended:
                    self._leave(ticket)
                self._raise_interrupt()
        finally:
            self.stats.prefill_seconds += time.perf_counter() - began

    def _round(self) -> None:
        began = time.perf_counter()
        trees = list[DraftTree]()
        for ticket in list(self._seated):
            started = time.perf_counter()
            try:
                trees.append(ticket.run.decoding.draft(self._sizing.budget()))
            except Exception as error:
                self._fail(ticket, error)
            ticket.run.stats.draft_seconds += time.perf_counter() - started
        tickets = list(self._seated)
        if not tickets:
            return
        trees = self._sizing.cut(trees, [ticket.values for ticket in tickets])
        drafted = time.perf_counter()
        tokens, learning = 0, 0.0
        try:
            self._verify(tickets, trees)
            target = time.perf_counter() - drafted
            for ticket, tree in zip(tickets, trees, strict=True):
                before = len(ticket.result.ids)
                try:
                    learning += self._follow(ticket, tree, target)
                except BaseException as error:
                    ticket.run.target.rollback()
                    self._fail(ticket, error)
                tokens += len(ticket.result.ids) - before
        except BaseException:
            for ticket in tickets:
                ticket.run.target.rollback()
            raise
        draft = drafted - began + learning
        self._sizing.learn(trees, tokens, target=target, draft=draft)
        self.stats.add_round(trees, tokens, target=target, draft=draft)

    def _verify(self, tickets: Sequence[Ticket], trees: Sequence[DraftTree]) -> None:
        decodings = [ticket.run.decoding for ticket in tickets]
        targets = [ticket.run.target for ticket in tickets]
        logits = self._ragged.verify(targets, [decoding.root for decoding in decodings], trees)
        looked = [each.look(own, tree) for each, own, tree in zip(decodings, logits, trees, strict=True)]
        receivers = [
            (decoding.sampler, choices)
            for decoding, choices in zip(decodings, looked, strict=True)
            if choices is not None
        ]
        if receivers:
            read = targets[0].read([choices for _, choices in receivers])
            for (sampler, _), choices in zip(receivers, read, strict=True):
                sampler.receive(choices)

    def _follow(self, ticket: Ticket, tree: DraftTree, target: float) -> float:
        """Let a text grow by its part of a round, and learn from that; return the seconds of learning."""
        decoding = ticket.run.decoding
        if ticket.done:  # another request's streamer has removed it meanwhile
            ticket.run.target.rollback()
            return 0.0
        done, path = decoding.follow(tree)
        decoding.stats.target_seconds += target
        self._grow(ticket, done)
        began = time.perf_counter()
        decoding.learn(tree, path, done)
        if len(tree):
            ticket.values.learn(tree, path)
            self._values.learn(tree, path)
        learning = time.perf_counter() - began
        decoding.stats.draft_seconds += learning
        if decoding.ended:
            self._leave(ticket)
        return learning

    def _grow(self, ticket: Ticket, done: Round) -> None:
        try:
            ticket.run.finish()
        finally:  # the cache has the round, so the text must, even where the streamer fails
            self._pieces.append((ticket, ticket.text.add(done)))

    def _fail(self, ticket: Ticket, error: BaseException) -> None:
        """Let a request leave for an error. An interrupt is the caller's: it is kept until the others are served."""
        if ticket.error is None:
            ticket.error, ticket.result.finish_reason = error, "error"
            self._pieces.append((ticket, NOTHING))
        if not isinstance(error, Exception) and self._interrupt is None:
            self._interrupt = error
        self._leave(ticket)

    def _leave(self, ticket: Ticket) -> None:
        for places in (self._waiting, self._seated):
            if ticket in places:
                places.remove(ticket)
        ticket.done = True
        try:
            ticket.run.decoding.close()
        except BaseException as error:
            self._fail(ticket, error)
        if not self._keep_caches:
            ticket.run.target.release()
            ticket.result.cache = None

    def _raise_interrupt(self) -> None:
        error, self._interrupt = self._interrupt, None
        if error is not None:
            raise error


def finish(batch: Batch, tickets: Sequence[Ticket]) -> list[Result]:
    """Decode until every request has left; return the results of these.

    Raises:
        BatchError: some failed; it holds all results.
    """
    with batch:
        try:
            for _ in batch:
                pass
        except OutOfMemoryError as error:  # nobody here can say who should go first
            for ticket in tickets:
                if not ticket.done:
                    batch._fail(ticket, error)
    results = [ticket.result for ticket in tickets]
    errors = {place: ticket.error for place, ticket in enumerate(tickets) if ticket.error is not None}
    if errors:
        raise BatchError(results, errors)
    return results
