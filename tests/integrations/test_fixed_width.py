"""Trees as SGLang verifies them: masks, padding, and that sampling over them is exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant.core.tree import DraftTree
from speculant.integrations.fixed_width import pad_to_width
from trees import drafts

WIDTH, VOCABULARY = 9, 40


def parents_of(mask: np.ndarray) -> list[int]:
    """Return each row's parent as SGLang finds it: the last row before it that it sees."""
    return [max((j for j in range(i) if mask[i, j]), default=-1) for i in range(len(mask))]


def arrays(draft: DraftTree) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens and the mask of one request, whose root is 7."""
    tokens, masks = pad_to_width([7], [draft], WIDTH)
    return tokens, masks.reshape(WIDTH, WIDTH)


@given(drafts(maximum=WIDTH - 1))
def test_the_tree_can_be_read_back(draft: DraftTree) -> None:
    """Guards the form: root, nodes with their parents, then padding below the root with tokens that differ."""
    tokens, mask = arrays(draft)
    nodes = len(draft)
    assert (tokens.dtype, mask.dtype) == (np.int64, np.int64)
    assert tokens[: nodes + 1].tolist() == [7, *draft.tokens.tolist()]
    parents = parents_of(mask)
    assert parents == [-1, *(draft.parents + 1).tolist(), *[0] * (WIDTH - 1 - nodes)]
    below = [token for token, parent in zip(tokens.tolist(), parents, strict=True) if parent == 0]
    assert len(set(below)) == len(below)
    assert tokens[1 + nodes :].max(initial=0) < WIDTH


def test_several_requests_lie_one_behind_the_other() -> None:
    """Guards the batch: tokens and masks in the order of requests."""
    tokens, masks = pad_to_width([1, 2], [DraftTree.empty(), DraftTree.from_paths([[0, 6]])], 4)
    assert tokens.tolist() == [1, 0, 1, 2, 2, 0, 6, 1]
    assert masks.reshape(2, 4, 4)[1].tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]]


def test_drafts_that_do_not_fit_are_refused() -> None:
    """Guards against cut trees."""
    with pytest.raises(ValueError, match="do not fit"):
        pad_to_width([1], [DraftTree.from_paths([[1, 2, 3]])], 3)


def first_token(tokens: np.ndarray, mask: np.ndarray, distribution: np.ndarray) -> np.ndarray:
    """Return the distribution of the first token under SGLang's target-only sampling with thresholds of 1.

    Its kernel goes through the children of the root, adds up their probabilities, and takes the first whose sum exceeds
    a uniform number; if none does, it draws from what the children leave of the target's distribution.
    """
    found, total, rest = np.zeros(len(distribution)), 0.0, distribution.copy()
    for row in (i for i, parent in enumerate(parents_of(mask)) if parent == 0):
        more = min(1.0, total + distribution[tokens[row]])
        found[tokens[row]] += more - total
        total, rest[tokens[row]] = more, 0.0
    return found + (1 - total) * rest / rest.sum() if rest.sum() else found


@given(drafts(maximum=WIDTH - 1), st.integers(0, 1 << 30))
def test_sampling_over_padded_trees_is_exact(draft: DraftTree, seed: int) -> None:
    """Guards the distribution: padding is a candidate like any other, so the rule yields the target's."""
    distribution = np.random.default_rng(seed).dirichlet(np.full(VOCABULARY, 0.3))
    np.testing.assert_allclose(first_token(*arrays(draft), distribution), distribution, atol=1e-9)


def test_padding_with_equal_tokens_would_not_be() -> None:
    """Shows what distinct padding is for: with token 0 in every padding row, it is chosen several times too often."""
    tokens, mask = arrays(DraftTree.empty())
    distribution = np.full(VOCABULARY, 1 / VOCABULARY)
    assert (
        first_token(np.append(tokens[:1], np.zeros(WIDTH - 1, np.int64)), mask, distribution)[0] > 7 * distribution[0]
    )
