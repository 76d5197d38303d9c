"""Pauses of drafting: passes that cost what plain ones do, and sessions that learn all that was committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scripted import Scripted, ScriptedSession, recording
from speculant.bench.replay.player import make_recorded_sequence
from speculant.core.drafter import Budget, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, Pass, RequestedOutputs
from speculant.core.tree import DraftTree, Int32
from speculant.decoding.step import DecodingComponents, step
from speculant.engines.recorded import RecordedEngine
from speculant.verifiers.sample_then_follow import SampleThenFollow
from trees import chain
from walks import adaptive, curve

TEXT = np.random.default_rng(0).integers(10, 1000, 600).tolist()


class Noting(RecordedEngine):
    """Notes what its passes were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[RequestedOutputs] = []

    def forward(self, batch: Sequence[Any], needs: RequestedOutputs = NO_OUTPUTS) -> list[Pass]:
        self.asked.append(needs)
        return super().forward(batch)  # recordings have no hidden states, whatever is asked for


class Wrong(Scripted):
    """Is sure of a token that never comes; notes which budgets it is asked with and what is learned together."""

    def __init__(self, needs: RequestedOutputs) -> None:
        super().__init__(chain(0.9, 0.8))
        self._wanted, self.budgets, self.pauses = needs, list[int](), list[int]()

    @property
    def needs(self) -> RequestedOutputs:
        return self._wanted

    def open(self, start: SessionRequest) -> Session:
        return WrongSession(self)


class WrongSession(ScriptedSession):
    """A session of it."""

    owner: Wrong

    def propose(self, budget: Budget) -> DraftTree:
        self.owner.budgets.append(budget.nodes)
        return super().propose(budget)

    def follow(self, tokens: Int32) -> None:
        self.owner.pauses.append(len(tokens))
        super().follow(tokens)

    def observe(self, verified: Verified) -> None:
        self.owner.seen.append(verified.tokens.tolist())


def decode(needs: RequestedOutputs) -> tuple[Wrong, Noting]:
    """Decode a text without one right draft."""
    drafter, engine = Wrong(needs), Noting()
    parts = DecodingComponents(
        engine=engine, drafter=drafter, verifier=SampleThenFollow(), sizing=adaptive(curve(0.05)), work_clock=Clock()
    )
    sequence = make_recorded_sequence(recording(TEXT), parts)
    while not sequence.ended:
        step([sequence], parts)
    sequence.close()
    return drafter, engine


class Clock:
    """Seconds that pass with every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_a_pause_is_plain_decoding() -> None:
    """Guards "never slower": no draft is asked for, nothing is wanted of passes, and what came is learned later."""
    drafter, engine = decode(RequestedOutputs(top_k=1))
    assert 0 not in drafter.budgets
    assert len(drafter.budgets) < 60
    resting = engine.asked.count(NO_OUTPUTS)
    assert resting > 500
    assert sum(drafter.pauses) == resting
    assert [token for tokens in drafter.seen for token in tokens] == TEXT


def test_what_is_always_wanted() -> None:
    """Guards drafters that learn from the target's tokens alone, and online distillation: pauses keep nothing back."""
    drafter, engine = decode(RequestedOutputs(top_k=1, always=True))
    assert NO_OUTPUTS not in engine.asked
    assert drafter.pauses == []
    assert [token for tokens in drafter.seen for token in tokens] == TEXT


def test_hidden_states_are_wanted_again_before_the_end() -> None:
    """Guards resting heads: long pauses hand out no states but in their last rounds, from which a head begins anew."""
    drafter, engine = decode(RequestedOutputs(hidden_layers=(-1,), hidden_context=8))
    resting = engine.asked.count(NO_OUTPUTS)
    assert 200 < resting == sum(drafter.pauses)
    tapped = "".join("." if needs is NO_OUTPUTS else "t" for needs in engine.asked).split(".")
    assert all(len(rounds) >= 8 for rounds in tapped[1:-1] if rounds)
    assert [token for tokens in drafter.seen for token in tokens] == TEXT


def test_hidden_states_without_a_beginning() -> None:
    """Guards drafters of users' own that read every state: they get them in pauses too."""
    _, engine = decode(RequestedOutputs(hidden_layers=(-1,)))
    assert NO_OUTPUTS not in engine.asked
