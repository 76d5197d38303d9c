"""A system in a benchmark: it decodes requests, measures them, and can be reset to an empty memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from speculant.api.speculator import Speculator
from speculant.bench.replay.player import replay
from speculant.bench.replay.traces import Recording
from speculant.bench.suite.batched import Answers, BatchOutcome, run_batch
from speculant.bench.suite.tasks import TaskItem, TaskRequest, TaskSampling
from speculant.bench.systems.forced import force
from speculant.core.engine import MAX_NODES
from speculant.registry import find_method

WARM_UP_TEXT = np.tile(np.arange(1, 40, dtype=np.int32), 8)  # repetitive, so that drafts are made and accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """The output of a request and its cost.

    Attributes:
        ids: the new token ids, up to and including the end of text.
        seconds: time of the whole request.
        prefill_seconds: time until the first new token was known.
        prefill_tokens: new tokens from the prompt's pass, which belong to no round.
        rounds: number of target passes after that.
        drafted: number of draft nodes verified; None if the system does not report it.
        offered_by_depth: [d - 1] counts the rounds with a draft to depth d; None likewise.
        accepted_by_depth: [d - 1] counts the rounds whose draft was accepted down to depth d.
        draft_seconds, target_seconds: time of drafting and learning, and of target passes; None likewise.
        memory_bytes: size of the drafter's memory; None likewise.
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


class System(Protocol):
    """A way to decode, with its learned state."""

    name: str

    @property
    def notes(self) -> Sequence[str]:
        """Messages for the user about how it runs."""

    @property
    def has_memory(self) -> bool:
        """Whether it has learned state that can be saved."""

    def token_identical(self, sampling: TaskSampling) -> bool:
        """Return whether it must yield exactly the tokens of plain decoding, not only their distribution."""

    def warm_up(self) -> None:
        """Compile whatever needs compiling."""

    def reset(self) -> None:
        """Clear the learned state."""

    def run(self, request: TaskRequest, sampling: TaskSampling) -> RequestOutcome:
        """Decode a request."""

    def save(self, path: Path) -> None:
        """Write the learned state."""

    def load(self, path: Path) -> None:
        """Read the learned state."""


class SpeculantSystem:
    """A registered method."""

    def __init__(self, name: str, make: Callable[[], Speculator]) -> None:
        """Create its speculator.

        Args:
            name: registered name of the method.
            make: returns a speculator with that method and an empty memory.
        """
        self.name = name
        self._make = make
        self._speculator = make()

    @property
    def notes(self) -> tuple[str, ...]:
        return self._speculator.engine.notes

    @property
    def fast(self) -> bool:
        """Whether passes run Speculant's own code for layers."""
        return bool(self._speculator.fast.linears or self._speculator.fast.layers)

    @property
    def has_memory(self) -> bool:
        return find_method(self.name).keeps_memory

    def token_identical(self, sampling: TaskSampling) -> bool:
        if find_method(self.name).exactness != "lossless":
            return False
        exactness = self._speculator.verifier.exactness
        return exactness == "tokens" or (exactness == "distribution" and not sampling.temperature)

    def warm_up(self) -> None:
        drafter = self._speculator.drafter
        if find_method(self.name).replayable and not drafter.needs.hidden_layers:
            replay(drafter, [Recording(WARM_UP_TEXT, WARM_UP_TEXT)], nodes=MAX_NODES)

    def reset(self) -> None:
        self._speculator = self._make()

    def save(self, path: Path) -> None:
        self._speculator.save(path)

    def load(self, path: Path) -> None:
        self._speculator.load(path)

    def run(self, request: TaskRequest, sampling: TaskSampling) -> RequestOutcome:
        speculator, prompt = self._speculator, request.prompt
        start = time.perf_counter()
        if request.forced is not None:
            ids, stats = force(speculator, prompt, request.forced.tolist())
        else:
            seed = sampling.seed if sampling.temperature else None
            stream = speculator.stream(
                prompt.tolist(), max_new_tokens=request.max_new_tokens, temperature=sampling.temperature, seed=seed
            )
            for _ in stream:
                pass
            ids, stats = stream.result.ids, stream.result.stats
        return RequestOutcome(
            ids=ids,
            seconds=time.perf_counter() - start,
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
        """The size of the drafter's memory; None if it does not report it."""
        return getattr(self._speculator.drafter, "memory_bytes", None)

    def run_batch(
        self, items: Sequence[TaskItem], sampling: TaskSampling, *, size: int, plain_answers: Answers | None
    ) -> BatchOutcome:
        """Decode many items in a batch; see `speculant.bench.suite.batched.run_batch`."""
        return run_batch(self._speculator, items, sampling, size=size, plain_answers=plain_answers)
