"""Rows below the committed text: growth in pieces, masks, chains."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passes import rows_of
from speculant.core.exports import ancestor_mask
from speculant.core.tree import DraftTree
from speculant.engines.hf.draft_rows import DraftRows
from tree_forms import attention_mask
from trees import drafts


@given(drafts(), st.integers(1, 5))
def test_growth_in_pieces_is_growth_at_once(tree: DraftTree, size: int) -> None:
    """Guards trees that are grown level by level: depths and ancestors are those of the whole."""
    _, parents = rows_of(0, tree)
    whole, grown = DraftRows().grown(parents), DraftRows()
    for start in range(0, len(parents), size):
        grown = grown.grown(parents[start : start + size])
    assert grown.parents.tolist() == whole.parents.tolist()
    assert grown.depths.tolist() == whole.depths.tolist() == [1, *(tree.depths() + 1)]
    assert (grown.ancestors == whole.ancestors).all()
    assert (whole.ancestors == ancestor_mask(tree)).all()


@given(drafts(), st.integers(0, 9), st.integers(0, 12), st.sampled_from([None, 1, 3, 30]))
def test_masks_are_those_of_the_draft(tree: DraftTree, length: int, start: int, window: int | None) -> None:
    """Guards masks of a part of the rows, with padding and windows, against the draft's own."""
    seen = np.arange(length) % 3 > 0
    _, parents = rows_of(0, tree)
    rows, start = DraftRows().grown(parents), min(start, len(tree))
    expected = attention_mask(tree, seen, window=window)[:, :, start:]
    assert (rows.mask(start, length, seen=seen, window=window) == expected).all()


def test_chains_are_recognised() -> None:
    """Guards models that verify chains only."""
    rows = DraftRows().grown(np.array([-1, 0, 1, 1]))
    assert DraftRows().is_chain()
    assert DraftRows().grown(np.array([-1, 0, 1])).is_chain()
    assert not rows.is_chain()


@pytest.mark.parametrize("parents", [[0], [-2], [-1, 1]])
def test_parents_come_first(parents: list[int]) -> None:
    """Guards against rows that follow themselves or nothing."""
    with pytest.raises(ValueError, match="before it"):
        DraftRows().grown(np.array(parents))
