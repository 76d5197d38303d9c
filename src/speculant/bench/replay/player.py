"""Replays recorded outputs as if a greedy target produced them, to count accepted drafted tokens without a model.

The first root is the last prompt token, so every output id counts, including end of text, and the last round counts
only the remaining tokens: MAT = tokens / rounds. The memory is kept across requests by default.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from speculant.bench.replay.calibration import Reliability
from speculant.bench.replay.sizes import size_drafts
from speculant.bench.replay.traces import Recording
from speculant.core.drafter import Drafter, SessionRequest, Verified
from speculant.core.stats import Stats, compute_mat
from speculant.decoding.sequence import Sequence
from speculant.decoding.step import DecodingComponents, step
from speculant.engines.recorded import RecordedCache, RecordedEngine, RecordedSampler
from speculant.sizing.step_cost import StepCost
from speculant.verifiers.sample_then_follow import SampleThenFollow

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftingCost:
    """The cost of drafting, for R rounds of Q requests.

    Attributes:
        nodes, deepest: Int64[R], the nodes of each draft and its depth.
        propose_seconds, learn_seconds: Float64[R], time of proposing and of observing.
        open_seconds: Float64[Q], time of opening a session for each request, which learns its prompt.
        memory_bytes: the largest size of the memory at the end of a request; None if the drafter does not report it.
        reliability: predicted against observed acceptance.
    """

    nodes: Int64
    deepest: Int64
    propose_seconds: Float64
    learn_seconds: Float64
    open_seconds: Float64
    memory_bytes: int | None
    reliability: Reliability


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayResult:
    """The result of replaying Q requests in R rounds.

    Attributes:
        categories: category of each request.
        prompt_tokens: Int64[Q], the tokens of each prompt.
        request: Int64[R], the request of each round.
        accepted: Int64[R], accepted draft tokens; a round yields one more.
        drafting: cost of drafting; None for acceptance that was recorded elsewhere.
    """

    categories: tuple[str, ...]
    prompt_tokens: Int64
    request: Int64
    accepted: Int64
    drafting: DraftingCost | None = None

    @property
    def tokens(self) -> int:
        """Emitted tokens."""
        return int(self.accepted.sum()) + self.rounds

    @property
    def rounds(self) -> int:
        """Target passes."""
        return len(self.accepted)

    @property
    def mat(self) -> float:
        """Mean tokens per round, bonus included."""
        return compute_mat(self.tokens, self.rounds, texts=0)


@dataclass(slots=True)
class _Log:
    """Grows during a replay; appending a number to a list is faster than to an array."""

    categories: list[str] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    request: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    deepest: list[int] = field(default_factory=list)
    propose_seconds: list[float] = field(default_factory=list)
    learn_seconds: list[float] = field(default_factory=list)
    open_seconds: list[float] = field(default_factory=list)
    memory_bytes: int | None = None
    reliability: Reliability = field(default_factory=Reliability)

    def result(self) -> ReplayResult:
        drafting = DraftingCost(
            nodes=np.array(self.nodes, np.int64),
            deepest=np.array(self.deepest, np.int64),
            propose_seconds=np.array(self.propose_seconds),
            learn_seconds=np.array(self.learn_seconds),
            open_seconds=np.array(self.open_seconds),
            memory_bytes=self.memory_bytes,
            reliability=self.reliability,
        )
        return ReplayResult(
            categories=tuple(self.categories),
            prompt_tokens=np.array(self.prompt_tokens, np.int64),
            request=np.array(self.request, np.int64),
            accepted=np.array(self.accepted, np.int64),
            drafting=drafting,
        )


def replay(
    drafter: Drafter,
    recordings: Iterable[Recording],
    *,
    nodes: int | Literal["auto"],
    chain: bool = False,
    cost: StepCost | None = None,
    max_depth: int | None = None,
    renew: Callable[[], Drafter] | None = None,
    advance: Callable[[int], object] = lambda _tokens: None,
) -> ReplayResult:
    """Replay the recordings in order.

    Args:
        drafter: the drafter whose drafts are compared with the outputs.
        recordings: the prompts and their outputs.
        nodes: maximum nodes per draft; "auto" for the size that decoding would choose, given `cost`.
        chain: whether to request chains, as for an engine that verifies nothing else; otherwise trees.
        cost: cost of target passes.
        max_depth: maximum depth of a draft; None for as deep as the method drafts.
        renew: returns a new drafter for each further request, built outside the timed parts; None to keep the memory.
        advance: called after each request with the number of its output tokens.
    """
    log = _Log()
    size = size_drafts(drafter, nodes, chain=chain, cost=cost, max_depth=max_depth)
    for number, recording in enumerate(recordings):
        if renew is not None and number:
            drafter = renew()
        log.categories.append(recording.category)
        log.prompt_tokens.append(len(recording.prompt))
        parts = DecodingComponents(
            engine=RecordedEngine(trees=not chain),
            drafter=drafter,
            verifier=SampleThenFollow(),
            sizing=size(),
            clock=time.perf_counter,
        )
        _replay_one(recording, parts, number, log)
        used = getattr(drafter, "memory_bytes", None)
        if used is not None:
            log.memory_bytes = max(used, log.memory_bytes or 0)
        advance(len(recording.output))
    return log.result()


def _replay_one(recording: Recording, parts: DecodingComponents, number: int, log: _Log) -> None:
    clock = parts.clock
    began = clock()
    sequence = make_recorded_sequence(recording, parts)
    log.open_seconds.append(clock() - began)
    while not sequence.ended:
        rounds = step([sequence], parts)
        if sequence.error is not None:
            raise sequence.error
        done = rounds.each[0]
        log.learn_seconds.append(rounds.observe_seconds)
        log.propose_seconds.append(rounds.draft_seconds)
        log.request.append(number)
        log.accepted.append(len(done.walk.path))
        log.nodes.append(len(done.draft))
        log.deepest.append(int(done.draft.depths().max()) if len(done.draft) else 0)
        path, tokens = (np.array(each, np.int32) for each in (done.walk.path, done.walk.tokens))
        log.reliability.add(Verified(tree=done.draft, path=path, tokens=tokens))
    sequence.close()
    log.reliability.fold()


def make_recorded_sequence(recording: Recording, parts: DecodingComponents) -> Sequence:
    """Return a recording as a sequence whose first root is the last token of its prompt."""
    start = SessionRequest(prompt=recording.prompt)
    sampler = RecordedSampler(recording.output.tolist())
    sequence = Sequence(RecordedCache(len(recording.prompt) - 1), sampler, start, Stats(method=""))
    session = parts.drafter.open(start)
    root = int(recording.prompt[-1]) if len(recording.prompt) else -1
    sequence.resume(session, parts.sizing.open(session, room=sampler.room), root, began=parts.clock())
    return sequence
