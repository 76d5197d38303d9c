"""The figures of a request follow from its rounds."""

from __future__ import annotations

import json

import numpy as np
import pytest

from samplers import ScriptedSampler
from speculant.core.stats import Stats
from speculant.core.tree import ROOT, DraftTree
from speculant.verifiers.sample_then_follow import SampleThenFollow
from trees import make_tree, random_draft


def test_counts_by_hand() -> None:
    """Three rounds: the whole chain right, the first node wrong, nothing drafted."""
    stats = Stats("aded", tokens=1)
    chain = make_tree([1, 2], [-1, 0])
    stats.add_round(chain, [0, 1], [1, 2, 3])
    stats.add_round(chain, [], [9])
    stats.add_round(DraftTree.empty(), [], [4])
    assert (stats.rounds, stats.tokens, stats.drafted, stats.accepted) == (3, 6, 4, 2)
    assert (stats.offered_by_depth, stats.accepted_by_depth) == ([2, 1], [1, 1])
    assert stats.acceptance_by_depth == [0.5, 1.0]
    assert stats.mat == 5 / 3


def test_depths_count_the_rounds_that_reached_them() -> None:
    """Over random rounds, a depth is offered where the accepted path ends above a drafted child."""
    random = np.random.default_rng(1)
    stats = Stats("aded", tokens=1)
    offered, accepted = [0] * 12, [0] * 12
    for _ in range(200):
        tree = random_draft(random, int(random.integers(8)), 3)
        walk = SampleThenFollow().walk(tree, None, ScriptedSampler(random.integers(3, size=len(tree) + 1).tolist()))
        path = walk.path
        stats.add_round(tree, path, walk.tokens)
        for depth, node in enumerate([ROOT, *path]):
            offered[depth] += bool(tree.children(node))
            accepted[depth] += depth < len(path)
    depth = len(stats.offered_by_depth)
    assert depth > 2
    assert stats.offered_by_depth + [0] * (12 - depth) == offered
    assert stats.accepted_by_depth + [0] * (12 - depth) == accepted
    assert sum(accepted) == stats.accepted
    assert stats.tokens == 1 + stats.rounds + stats.accepted


def test_plain_decoding_has_mat_one() -> None:
    """One token a round is a mean of exactly one: the token of prefill belongs to no round."""
    stats = Stats("none", tokens=1)
    for _ in range(7):
        stats.add_round(DraftTree.empty(), [], [1])
    assert stats.mat == 1.0


def test_nothing_happened_yet() -> None:
    """Before the first round no figure divides by zero."""
    stats = Stats("none")
    assert (stats.mat, stats.tokens_per_second, stats.acceptance_by_depth) == (0.0, 0.0, [])
    assert set(stats.time_share.values()) == {0.0}
    assert "nothing drafted" in stats.report()


def test_time_shares() -> None:
    """Shares are of the time after prefill, add up to one, and speed counts all of it."""
    stats = Stats("aded", tokens=30, prefill_seconds=2.0, draft_seconds=1.0, target_seconds=6.0, seconds=10.0)
    assert stats.time_share == pytest.approx({"draft": 0.125, "target": 0.75, "rest": 0.125})
    assert stats.tokens_per_second == 3.0


def test_json_and_report() -> None:
    """The JSON survives a round trip, and the report names what matters, notes included."""
    stats = Stats("aded", prompt_tokens=5, tokens=1, seconds=2.0, notes=["drafts are chains here"])
    stats.add_round(make_tree([1, 2], [-1, -1]), [1], [2, 3])
    assert json.loads(json.dumps(stats.to_json())) == stats.to_json()
    assert stats.to_json()["mat"] == stats.mat == 2.0
    report = stats.report()
    for part in (
        "aded",
        "1.5 tokens/s: 3 tokens in 2.00 s",
        "2.00 tokens per target pass",
        "1 of 2 drafted",
        "100%",
        "drafts are chains here",
    ):
        assert part in report
