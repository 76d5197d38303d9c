"""What rejected nodes teach: a new context much, a known one little."""

from __future__ import annotations

from speculant.core.tree import DraftTree
from speculant.sizing.exploration import Lessons
from trees import chain


def test_new_contexts_are_worth_more_than_known_ones() -> None:
    """A context is a node's token after its parent's, whether a draft or the text has shown it."""
    lessons, tree = Lessons(), chain(0.5, 0.4, 0.3)  # tokens 0, 1, 2
    new = lessons.worth(tree, 9)
    assert len(set(new.tolist())) == 1
    lessons.learn(DraftTree.empty(), [7, 9, 0, 1])
    assert lessons.worth(tree, 9).tolist() == [new[0] / 4, new[0] / 4, new[0]]
    assert lessons.worth(tree, 8).tolist() == [new[0], new[0] / 4, new[0]]
    lessons.learn(tree, [3, 8, 5])
    assert lessons.worth(tree, 8).tolist() == [new[0] / 4] * 3


def test_a_beginning_without_text() -> None:
    """Guards the first round, before which no token is known to the sizing."""
    lessons = Lessons()
    lessons.learn(chain(0.5), [-1, -1, 4])
    assert len(lessons.worth(chain(0.5, 0.4), -1)) == 2
