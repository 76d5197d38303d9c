"""Several requests decoded together: drafts of each, one target pass for all, and every text walks its own way.

    each session proposes a tree; the nodes of the pass go where they gain most
    the target runs one pass over the roots and nodes of all
    each verifier walks its tree; each text grows by as much as its draft was right, and leaves when it ends
    seats that are free go to requests that wait; their prompts are read

A request has its own cache, options, random stream and stop, and says what it would say alone. Requests join and leave
between rounds (continuous batching: Yu et al., Orca, OSDI 2022). One that fails leaves the others be.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from speculant.batch_sizing import BatchSizing
from speculant.decoding import Round
from speculant.errors import BatchError, UsageError
from speculant.generation import Piece, Result, Run, Text
from speculant.stats import BatchStats
from speculant.targets.ragged import RaggedPass
from speculant.tree import DraftTree
from speculant.values import Values

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
        self.error: Exception | None = None
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
    ) -> None:
        """Begin an empty batch; `Speculator.batch` is the usual way in.

        Args:
            prepare: returns the request that a prompt and options make.
            tokenizer: for texts, or None.
            ragged: runs the passes.
            sizing: shares the nodes of a pass.
            values: what nodes have been worth so far; every request goes its own way from there, and teaches it.
            size: the most requests in a pass.
        """
        if size < 1:
            raise UsageError(f"a batch has room for 1 request or more, not {size}.")
        self._prepare, self._tokenizer, self._ragged, self._sizing = prepare, tokenizer, ragged, sizing
        self._values, self._size = values, size
        self._waiting: deque[Ticket] = deque()
        self._seated: list[Ticket] = []
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
        """Let a request that is ready wait for the next free seat."""
        ticket = Ticket(run, Text(run, self._tokenizer), Values(self._values))
        self._waiting.append(ticket)
        return ticket

    def remove(self, ticket: Ticket) -> None:
        """Let a request leave before its end; what it said so far is in its result."""
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        if ticket in self._seated:
            self._seated.remove(ticket)
        ticket.run.decoding.close()
        ticket.done = True

    def close(self) -> None:
        """Let every request leave."""
        for ticket in [*self._waiting, *self._seated]:
            self.remove(ticket)

    def __iter__(self) -> Iterator[tuple[Ticket, Piece]]:
        """Decode until every request has left, those added meanwhile too; yield what each round adds to each text."""
        while len(self):
            yield from self.step()

    def step(self) -> list[tuple[Ticket, Piece]]:
        """Run one round, then seat who waits; return what that added to each text, an empty piece where one failed.

        Raises:
            OutOfMemoryError: the pass does not fit. Nothing is lost: `remove` a request, then go on.
        """
        with torch.no_grad():
            began = time.perf_counter()
            pieces = self._round() if self._seated else []
            done = time.perf_counter()
            pieces += self._seat()
            self.stats.prefill_seconds += time.perf_counter() - done
            self.stats.seconds += time.perf_counter() - began
        return pieces

    def _seat(self) -> list[tuple[Ticket, Piece]]:
        pieces = []
        while self._waiting and len(self._seated) < self._size:
            ticket = self._waiting.popleft()
            try:
                pieces.append((ticket, self._grow(ticket, ticket.run.decoding.begin())))
                self.stats.tokens += 1
            except Exception as error:
                pieces.append((ticket, self._fail(ticket, error)))
                continue
            if ticket.done:
                ticket.run.decoding.close()
            else:
                self._seated.append(ticket)
        return pieces

    def _round(self) -> list[tuple[Ticket, Piece]]:
        began = time.perf_counter()
        pieces, trees = [], list[DraftTree]()
        for ticket in list(self._seated):
            started = time.perf_counter()
            try:
                trees.append(ticket.run.decoding.draft(self._sizing.budget()))
            except Exception as error:
                pieces.append((ticket, self._fail(ticket, error)))
            ticket.run.stats.draft_seconds += time.perf_counter() - started
        tickets = list(self._seated)
        if not tickets:
            return pieces
        trees = self._sizing.cut(trees, [ticket.values for ticket in tickets])
        drafted = time.perf_counter()
        try:
            self._verify(tickets, trees)
            verified = time.perf_counter()
            followed = [self._follow(ticket, tree) for ticket, tree in zip(tickets, trees, strict=True)]
        except BaseException:
            for ticket in tickets:
                ticket.run.target.rollback()
            raise
        committed = time.perf_counter()
        tokens = 0
        for ticket, tree, (done, path, piece) in zip(tickets, trees, followed, strict=True):
            pieces.append((ticket, piece))
            if done is not None:
                tokens += len(done.tokens)
                try:
                    self._learn(ticket, tree, path, done, verified - drafted)
                except Exception as error:
                    self._fail(ticket, error)
        draft = drafted - began + time.perf_counter() - committed
        self._sizing.learn(trees, tokens, target=verified - drafted, draft=draft)
        self.stats.add_round(trees, tokens, target=verified - drafted, draft=draft)
        return pieces

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

    def _follow(self, ticket: Ticket, tree: DraftTree) -> tuple[Round | None, list[int], Piece]:
        try:
            done, path = ticket.run.decoding.follow(tree)
            return done, path, self._grow(ticket, done)
        except Exception as error:
            ticket.run.target.rollback()
            return None, [], self._fail(ticket, error)

    def _learn(self, ticket: Ticket, tree: DraftTree, path: list[int], done: Round, target: float) -> None:
        decoding, began = ticket.run.decoding, time.perf_counter()
        decoding.learn(tree, path, done)
        if len(tree):
            ticket.values.learn(tree, path)
            self._values.learn(tree, path)
        decoding.stats.draft_seconds += time.perf_counter() - began
        decoding.stats.target_seconds += target
        if ticket.done:
            decoding.close()

    def _grow(self, ticket: Ticket, done: Round) -> Piece:
        ticket.run.settle(done)
        if ticket.run.decoding.ended:
            ticket.done = True
            if ticket in self._seated:
                self._seated.remove(ticket)
        return ticket.text.add(done)

    def _fail(self, ticket: Ticket, error: Exception) -> Piece:
        ticket.error = error
        ticket.result.finish_reason = "error"
        self.remove(ticket)
        return NOTHING


def finish(batch: Batch, tickets: Sequence[Ticket]) -> list[Result]:
    """Decode until every request has left; return the results of these.

    Raises:
        BatchError: some failed; it holds all results.
    """
    try:
        for _ in batch:
            pass
    finally:
        batch.close()
    results = [ticket.result for ticket in tickets]
    errors = {place: ticket.error for place, ticket in enumerate(tickets) if ticket.error is not None}
    if errors:
        raise BatchError(results, errors)
    return results
