"""Exploration bonus: much for a new context, little for a known one."""

from __future__ import annotations

from speculant.core.tree import DraftTree
from speculant.sizing.exploration import ExplorationBonus
from trees import chain


def test_new_contexts_gain_more_than_known_ones() -> None:
    """A context is a node's token after its parent's, whether a draft or the text contained it."""
    exploration, tree = ExplorationBonus(), chain(0.5, 0.4, 0.3)  # tokens 0, 1, 2
    new = exploration.bonus(tree, 9)
    assert len(set(new.tolist())) == 1
    exploration.observe(DraftTree.empty(), [7, 9, 0, 1])
    assert exploration.bonus(tree, 9).tolist() == [new[0] / 4, new[0] / 4, new[0]]
    assert exploration.bonus(tree, 8).tolist() == [new[0], new[0] / 4, new[0]]
    exploration.observe(tree, [3, 8, 5])
    assert exploration.bonus(tree, 8).tolist() == [new[0] / 4] * 3


def test_a_beginning_without_text() -> None:
    """Guards the first round, before which the policy knows no token."""
    exploration = ExplorationBonus()
    exploration.observe(chain(0.5), [-1, -1, 4])
    assert len(exploration.bonus(chain(0.5, 0.4), -1)) == 2
