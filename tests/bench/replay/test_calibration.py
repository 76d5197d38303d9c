"""Predicted against observed acceptance."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.bench.replay.calibration import Reliability
from speculant.core.drafter import Verified
from speculant.core.tree import DraftTree


def verified(tree: DraftTree, path: list[int], tokens: list[int]) -> Verified:
    return Verified(tree=tree, path=np.array(path, np.int32), tokens=np.array(tokens, np.int32))


def tree(tokens: list[int], parents: list[int], weights: list[float]) -> DraftTree:
    return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), np.array(weights, np.float32))


def test_only_nodes_below_what_was_right_are_checked() -> None:
    """A node's probability is conditional on its parent; below a rejected parent it cannot be checked."""
    found = Reliability()
    draft = tree([5, 6, 7, 8, 9], [-1, -1, 0, 1, 2], [0.6, 0.4, 0.3, 0.2, 0.15])
    found.add(verified(draft, [0], [5, 99]))  # 5 was right, 7 below it was not; 8 and 9 stand below rejected nodes
    found.fold()
    assert found.counts.sum() == 3
    assert found.hits.sum() == 1
    bins = {round(each["predicted"], 3): each for each in found.to_json()}
    assert {value: (each["count"], each["observed"]) for value, each in bins.items()} == {
        0.6: (1, 1.0), 0.4: (1, 0.0), 0.5: (1, 0.0),
    }  # fmt: skip
    assert found.ece == pytest.approx((0.4 + 0.4 + 0.5) / 3)


def test_the_last_token_of_a_text_counts_as_seen() -> None:
    """Where the text ends inside the draft, only nodes up to the last token can be checked."""
    found = Reliability()
    found.add(verified(tree([5, 6, 7], [-1, 0, 1], [0.9, 0.8, 0.7]), [0], [5, 6]))
    found.fold()
    assert (found.counts.sum(), found.hits.sum()) == (2, 2)


def test_a_perfect_forecast_has_no_error() -> None:
    """Nodes of probability one half that are accepted every other time are calibrated."""
    found = Reliability()
    for token in (5, 6):
        found.add(verified(tree([5], [-1], [0.5]), [0] if token == 5 else [], [5, 1] if token == 5 else [6]))
    found.fold()
    found.fold()
    assert found.ece == 0


def test_certainty_is_no_estimate() -> None:
    """A drafter without probabilities, or without drafts, has no calibration error."""
    found = Reliability()
    found.fold()
    assert found.ece is None
    found.add(verified(DraftTree.empty(), [], [4]))
    found.add(verified(DraftTree.from_paths([[5, 6]]), [], [4]))
    found.fold()
    assert (found.ece, found.to_json()) == (None, [])


def test_weights_of_zero() -> None:
    """A node below a parent of weight 0 counts as impossible."""
    found = Reliability()
    found.add(verified(tree([5, 6], [-1, 0], [0.0, 0.0]), [0, 1], [5, 6, 7]))
    found.fold()
    assert found.ece == 1
