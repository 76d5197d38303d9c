"""A method in a benchmark: it answers requests, says what that took, and can begin anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from speculant.api.speculator import MOST_NODES, Speculator
from speculant.bench.replay.player import replay
from speculant.bench.replay.traces import Recording
from speculant.bench.suite.tasks import Item, Request, Sampling
from speculant.bench.suite.together import Answers, Together, play_together
from speculant.bench.systems.forced import ForcedSampler, force
from speculant.registry import find_method

PLAIN = "none"
PRACTICE = np.tile(np.arange(1, 40, dtype=np.int32), 8)  # a text that repeats itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a request.

    Attributes:
        ids: the new token ids, end of text included and nothing behind it.
        seconds: the whole request; prefill_seconds: until its first token was there.
        prefill_tokens: tokens that the prompt's pass gave, which belong to no round.
        rounds: target passes after that.
        drafted: draft nodes verified; None if the method does not say.
        offered_by_depth: [d - 1] counts the rounds that reached depth d with a draft to check; None likewise.
        accepted_by_depth: [d - 1] counts the rounds whose draft was right down to depth d.
        draft_seconds, target_seconds: of drafting and learning, and of target passes; None likewise.
        memory_bytes: what the method's memory takes; None likewise.
    """

    ids: list[int]
    seconds: float
    prefill_seconds: float
    prefill_tokens: int
    rounds: int
    drafted: int | None = None
    offered_by_depth: list[int] | None = None
    accepted_by_depth: list[int]
    draft_seconds: float | None = None
    target_seconds: float | None = None
    memory_bytes: int | None = None


class Contestant(Protocol):
    """A method, and what it has learned so far."""

    name: str

    @property
    def notes(self) -> Sequence[str]:
        """What the user should know of how it runs."""

    @property
    def learns(self) -> bool:
        """Whether it keeps a memory that can be saved."""

    def same_tokens(self, sampling: Sampling) -> bool:
        """Whether it promises the very tokens of plain decoding, not only their distribution."""

    def practise(self) -> None:
        """Have compiled what needs to be."""

    def renew(self) -> None:
        """Forget what was learned."""

    def play(self, request: Request, sampling: Sampling) -> Outcome:
        """Answer a request."""

    def save(self, path: Path) -> None:
        """Write what was learned."""

    def load(self, path: Path) -> None:
        """Go on from what was written."""


class Own:
    """A method of the registry."""

    def __init__(self, name: str, make: Callable[[], Speculator]) -> None:
        """Prepare it.

        Args:
            name: of the registry.
            make: returns a speculator of it with an empty memory.
        """
        self.name = name
        self._make = make
        self._speculator = make()

    @property
    def notes(self) -> tuple[str, ...]:
        return self._speculator.abilities.notes + self._speculator.fast.notes

    @property
    def fast(self) -> bool:
        """Whether passes run the library's own code."""
        return bool(self._speculator.fast.linears)

    @property
    def learns(self) -> bool:
        return find_method(self.name).memory

    def same_tokens(self, sampling: Sampling) -> bool:
        return True

    def practise(self) -> None:
        if find_method(self.name).replayable:
            replay(self._speculator.drafter, [Recording(PRACTICE, PRACTICE)], nodes=MOST_NODES)

    def renew(self) -> None:
        self._speculator = self._make()

    def save(self, path: Path) -> None:
        self._speculator.save(path)

    def load(self, path: Path) -> None:
        self._speculator.load(path)

    def play(self, request: Request, sampling: Sampling) -> Outcome:
        speculator, prompt = self._speculator, request.prompt
        began = time.perf_counter()
        if request.forced is not None:
            ids, stats = force(speculator, prompt, ForcedSampler(request.forced.tolist()))
        else:
            seed = sampling.seed if sampling.temperature else None
            stream = speculator.stream(
                prompt.tolist(), max_new_tokens=request.most, temperature=sampling.temperature, seed=seed
            )
            for _ in stream:
                pass
            ids, stats = stream.result.ids, stream.result.stats
        return Outcome(
            ids=ids,
            seconds=time.perf_counter() - began,
            prefill_seconds=stats.prefill_seconds,
            prefill_tokens=1,
            rounds=stats.rounds,
            drafted=stats.drafted,
            offered_by_depth=stats.offered_by_depth,
            accepted_by_depth=stats.accepted_by_depth,
            draft_seconds=stats.draft_seconds,
            target_seconds=stats.target_seconds,
            memory_bytes=self.memory_bytes,
        )

    @property
    def memory_bytes(self) -> int | None:
        """What the method's memory takes; None if it does not say."""
        return getattr(self._speculator.drafter, "memory_bytes", None)

    def play_together(self, items: Sequence[Item], sampling: Sampling, *, size: int, said: Answers | None) -> Together:
        """Answer many items in a batch; see `together.play_together`."""
        return play_together(self._speculator, items, sampling, size=size, said=said)
