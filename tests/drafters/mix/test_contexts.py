"""Contexts: which there are for how much text, and that no two of them are taken for one another."""

from __future__ import annotations

from itertools import product

import numpy as np

from speculant.drafters.mix.contexts import (
    CONTEXTS,
    FREQUENT,
    ORDERS,
    SHORTER,
    SKELETON,
    SKIP,
    TARGET_ONE,
    TARGET_TWO,
    WIDE,
    WINDOW,
    hash_contexts,
)
from tables import ids

SUFFIXES = (1, 2, 3, 4, 6)
NEEDED = (*SUFFIXES, 2, 4, 1, 2)


def frequencies(*frequent: int) -> np.ndarray:
    """Return the counts of 3000 tokens, of which a few are frequent."""
    counts = np.ones(3001, np.int64)
    counts[list(frequent)] = 1000
    counts[-1] = 2 * 1000 * FREQUENT // (FREQUENT + 1)
    return counts


def hashed(*text: int, counts: np.ndarray | None = None) -> list[int]:
    """Return the hash of each context at the end of a text."""
    hashes = np.empty(CONTEXTS, np.uint64)
    counts = frequencies() if counts is None else counts
    hash_contexts(ids(text[-WINDOW:]), min(len(text), WINDOW), counts, hashes)
    return hashes.tolist()


def test_short_texts_have_fewer_contexts() -> None:
    """A context is 0 until the text has the tokens it looks at, and never after."""
    for length in range(9):
        hashes = hashed(*range(length))
        assert [value != 0 for value in hashes] == [length >= needed for needed in NEEDED]


def test_a_context_is_its_tokens() -> None:
    """Equal suffixes hash alike whatever stood before; any other token makes another context."""
    text = (7, 1, 2, 3, 4, 5)
    for changed in range(6):
        other = [*text]
        other[changed] = 9
        behind = 6 - changed  # the place of the change, counted from the end
        same = [one == two for one, two in zip(hashed(*text), hashed(*other), strict=True)]
        assert same[:ORDERS] == [length < behind for length in SUFFIXES]
        assert same[SKIP] == (behind != 2)
        assert same[TARGET_ONE] == (behind != 1)
        assert same[TARGET_TWO] == (behind > 2)


def test_order_counts() -> None:
    """The same tokens in another order are another context."""
    swapped = zip(hashed(1, 2, 3, 4, 5, 6), hashed(1, 2, 3, 4, 6, 5), strict=True)
    assert [one == two for one, two in swapped] == [context == SKELETON for context in range(CONTEXTS)]
    turned = hashed(6, 5, 4, 3, 2, 1)
    assert turned[4] != hashed(1, 2, 3, 4, 5, 6)[4]


def test_no_context_is_anothers() -> None:
    """A token of one kind of context hashes as no token of another kind: they share tables."""
    singles = {hashed(token, token)[kind] for token in range(3000) for kind in (0, SKIP, TARGET_ONE)}
    assert len(singles) == 3 * 3000
    pairs = {hashed(*pair)[kind] for pair in product(range(50), repeat=2) for kind in (1, TARGET_TWO)}
    assert len(pairs) == 2 * 50**2
    counts = frequencies(*range(8))
    fours = {hashed(*four, counts=counts)[kind] for four in product(range(8), repeat=4) for kind in (3, SKELETON)}
    assert len(fours) == 2 * 8**4


def test_the_skeleton_sees_frequent_tokens_alone() -> None:
    """Rare tokens count as the same one, frequent ones as themselves, and what is frequent may change."""
    counts = frequencies(1, 2)
    skeleton = [hashed(*text, counts=counts)[SKELETON] for text in ((1, 8, 2, 9), (1, 5, 2, 6), (1, 8, 1, 9))]
    assert skeleton[0] == skeleton[1] != skeleton[2]
    assert hashed(1, 8, 2, 9, counts=frequencies(1))[SKELETON] != skeleton[0]


def test_long_contexts_wait_for_shorter_ones() -> None:
    """What a row waits for is a shorter suffix whose row stands in the same table."""
    for context, shorter in enumerate(SHORTER):
        if shorter >= 0:
            assert SUFFIXES[shorter] < SUFFIXES[context]
            assert not WIDE[shorter]
