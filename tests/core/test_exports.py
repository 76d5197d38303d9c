"""The forms in which engines take draft trees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant.core.exports import ancestor_mask
from speculant.core.tree import DraftTree
from tree_forms import attention_mask, sequence_sets
from trees import ancestry, as_nodes, beside, drafts, leaves, make_tree


@given(drafts())
def test_ancestor_mask(tree: DraftTree) -> None:
    """A row sees the root, its ancestors and itself, and nothing else."""
    above = ancestry(tree)
    mask = ancestor_mask(tree)
    assert mask.shape == (len(tree) + 1, len(tree) + 1)
    assert np.flatnonzero(mask[0]).tolist() == [0]
    for node in range(len(tree)):
        assert np.flatnonzero(mask[node + 1]).tolist() == [0, *(i + 1 for i in sorted(above[node]))]


@given(drafts(), st.integers(0, 5))
def test_ancestor_mask_padding(tree: DraftTree, spare: int) -> None:
    """Rows beyond the draft hang below the root and nothing sees them."""
    rows = len(tree) + 1
    mask = ancestor_mask(tree, rows + spare)
    assert (mask[:rows, :rows] == ancestor_mask(tree)).all()
    assert not mask[:rows, rows:].any()
    for row in range(rows, rows + spare):
        assert np.flatnonzero(mask[row]).tolist() == [0, row]


def test_ancestor_mask_refuses_a_draft_that_does_not_fit() -> None:
    """A draft wider than the engine's mask is refused, never cut silently."""
    with pytest.raises(ValueError, match="at most 1 nodes"):
        ancestor_mask(make_tree([1, 2], [-1, -1]), 2)


@given(drafts(), st.data())
def test_attention_mask(tree: DraftTree, data: st.DataObject) -> None:
    """Each cell follows from the definition: unpadded, not another branch, and inside the window."""
    padded = data.draw(st.lists(st.booleans(), max_size=6))
    window = data.draw(st.none() | st.integers(1, 8))
    above = [set(), *ancestry(tree)]
    depths = [0, *tree.depths().tolist()]
    length, rows = len(padded), len(tree) + 1
    expected = np.zeros((rows, length + rows), bool)
    for row in range(rows):
        own = length + depths[row]
        for column in range(length + rows):
            if column < length:
                position, seen = column, padded[column]
            else:
                other = column - length
                position, seen = length + depths[other], other == 0 or other - 1 in above[row]
            expected[row, column] = seen and (window is None or position > own - window)
    mask = attention_mask(tree, np.array(padded, bool), window=window)
    assert mask.shape == (1, 1, rows, length + rows)
    assert mask.dtype == bool
    assert (mask[0, 0] == expected).all()
    assert mask[0, 0].diagonal(length).all()
    if all(padded):
        assert (attention_mask(tree, length, window=window) == mask).all()


@given(drafts())
def test_sequence_sets(tree: DraftTree) -> None:
    """A node belongs to the sequences of the leaves below it, as llama.cpp wants it."""
    sets = sequence_sets(tree)
    above = ancestry(tree)
    ends = leaves(tree)
    if not len(tree):
        assert sets == [[0]]
        return
    assert sets[0] == list(range(len(ends)))
    for node, parent in enumerate(tree.parents.tolist()):
        assert sets[node + 1] == [i for i, leaf in enumerate(ends) if node in above[leaf]]
        assert set(sets[node + 1]) <= set(sets[parent + 1])
    for leaf in ends:
        assert len(sets[leaf + 1]) == 1


def test_the_empty_draft() -> None:
    """One row, the root's, which attends to itself and to what is cached."""
    tree = DraftTree.empty()
    assert ancestor_mask(tree).tolist() == [[True]]
    assert attention_mask(tree, 2).tolist() == [[[[True, True, True]]]]
    assert sequence_sets(tree) == [[0]]


@given(drafts(), drafts(), st.integers(0, 3), st.none() | st.integers(1, 8))
def test_exports_have_the_rows_of_queries(tree: DraftTree, other: DraftTree, length: int, window: int | None) -> None:
    """What engines are handed treats queries as rows like others: as if they were nodes."""
    both = beside(tree, other)
    whole = as_nodes(both)
    assert (ancestor_mask(both) == ancestor_mask(whole)).all()
    assert (attention_mask(both, length, window=window) == attention_mask(whole, length, window=window)).all()
    assert sequence_sets(both) == sequence_sets(whole)
