"""Rounds without a draft that measure plain decoding."""

from __future__ import annotations

import numpy as np

from speculant.core.tree import DraftTree
from speculant.sizing.plain_checks import PlainChecks
from trees import chain
from walks import adaptive, observe


def drafted(checks: PlainChecks, rounds: int, sequences: int = 1, *, tokens: int = 1) -> list[int]:
    """Return after how many rounds with drafts, of so many tokens in the time of one, each check was due."""
    found = []
    for turn in range(rounds):
        if checks.is_due(sequences):
            found.append(turn)
        checks.observe(sequences, drafted=not checks.is_due(sequences), tokens=tokens, time=1.0)
    return found


def test_checks_get_rarer() -> None:
    """Guards drafts that gain: of their rounds ever fewer go without one, and the fewest where drafts gain a lot."""
    assert np.diff(drafted(PlainChecks(), 400)).tolist() == [9, 17, 33, 65, 65, 65, 65, 65]
    assert np.diff(drafted(PlainChecks(), 2100, tokens=2)).tolist() == [9, 17, 33, 65, 129, 257, 513, 513, 513]


def test_plain_rounds_put_off_checks() -> None:
    """No round is given up for what other rounds show anyway."""
    checks = PlainChecks()
    for _ in range(100):
        checks.observe(1, drafted=True, tokens=2, time=1.0)
        assert not checks.is_due(1)
        checks.observe(1, drafted=False, tokens=1, time=1.0)


def test_only_checks_make_checks_rarer() -> None:
    """Guards the first rounds of a process, when plain rounds are frequent and slow: they do not count as checks."""
    checks = PlainChecks()
    for _ in range(20):
        checks.observe(1, drafted=True, tokens=2, time=1.0)
        checks.observe(1, drafted=False, tokens=1, time=1.0)
    assert drafted(checks, 6) == [4]


def test_similar_numbers_of_sequences_share_their_checks() -> None:
    """Guards servers: a batch whose size changes between rounds checks no more often, nor does a text that is alone."""
    checks, due = PlainChecks(), 0
    for turn in range(100):
        sequences = 12 + turn % 4
        due += checks.is_due(sequences)
        checks.observe(sequences, drafted=not checks.is_due(sequences), tokens=1, time=1.0)
        if turn < 3:
            checks.observe(1, drafted=True, tokens=1, time=1.0)
    assert due == 4
    assert not checks.is_due(1)


def test_drafts_that_lose_are_found_out_though_the_first_passes_were_slow() -> None:
    """Guards "never slower" in batches: plain decoding was believed to be as slow as the first passes of a process."""
    sizing, random, spent, nodes = adaptive(None), np.random.default_rng(0), 0.0, 0
    states = [sizing.open() for _ in range(8)]
    for turn in range(400):
        sized = sizing.nodes(states)
        drafts = sizing.trim(states, [chain(0.5) if each else DraftTree.empty() for each in sized])
        count = sum(map(len, drafts))
        accepted = [int(len(draft) > 0 and random.random() < 0.5) for draft in drafts]
        time = (1.6 if turn < 3 else 1.0) + 0.1 * count
        observe(sizing, states, drafts, accepted, target=time * random.lognormal(0, 0.03), draft=0.01)
        nodes += count if turn >= 200 else 0
        spent += 0.1 * count - sum(accepted) / 8 if turn >= 200 else 0.0
    assert nodes < 100
    assert spent < 0.02 * 200
