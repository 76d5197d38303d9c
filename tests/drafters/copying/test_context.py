"""The text of a request: what a search in it finds, however long it has grown."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.drafters.copying.context import (
    Context,
    copy_token,
    heaviest_first,
    longest_match,
    new_rates,
    rate,
    rate_copy,
)
from tables import ids


def naive_match(text: list[int], shortest: int, longest: int) -> tuple[int, int]:
    """Return where the longest earlier match of the text's end ends, the most recent of the longest."""
    for size in range(longest, shortest - 1, -1):
        for at in range(len(text) - 2, size - 2, -1):
            if text[at + 1 - size : at + 1] == text[len(text) - size :]:
                return at, size
    return -1, 0


def find(context: Context, shortest: int = 1, longest: int = 64, reach: int = 1 << 20) -> tuple[int, int]:
    """Search behind the last token."""
    last = context.length - 1
    nearest = int(context.previous[last])
    return longest_match(context.text, context.previous, nearest, last, shortest, longest, reach)


@pytest.mark.parametrize("vocabulary", [4, 3, 1], ids=["a bucket per token", "shared buckets", "one bucket"])
def test_the_longest_most_recent_match(vocabulary: int) -> None:
    """Agrees with a search by definition while the text grows piece by piece, and where tokens share a bucket."""
    random = np.random.default_rng(1)
    text = random.integers(0, 4, 3).tolist()
    context = Context(ids(text), vocabulary)
    for _ in range(80):
        more = random.integers(0, 4, int(random.integers(1, 5))).tolist()
        text += more
        context.append(ids(more))
        for shortest, longest in ((1, 3), (1, 64), (2, 4), (3, 3)):
            assert find(context, shortest, longest) == naive_match(text, shortest, longest)


def test_a_text_outgrows_its_arrays() -> None:
    """Positions and links stay what they were."""
    text = np.random.default_rng(2).integers(0, 50, 9000).astype(np.int32)
    context = Context(text[:10], 50)
    for at in range(10, 9000, 499):
        context.append(text[at : at + 499])
    assert context.length == 9000
    assert (context.text[:9000] == text).all()
    whole = Context(text, 50)
    assert (context.previous[:9000] == whole.previous[:9000]).all()


def test_only_so_many_places_are_looked_at() -> None:
    """A bound on the search leaves the earliest places out."""
    context = Context(ids([1, 2, 3, 9, 3, 9, 3, 1, 2, 3]), 10)
    assert find(context) == (2, 3)
    assert find(context, reach=2) == (6, 1)


def test_nothing_to_match() -> None:
    """New tokens, ids beyond the vocabulary and short texts have no match."""
    assert find(Context(ids([1, 2, 3]), 10)) == (-1, 0)
    assert find(Context(ids([11, 1, 21]), 10)) == (-1, 0)
    assert find(Context(ids([1]), 10)) == (-1, 0)


def test_a_copy_repeats_itself() -> None:
    """Behind the text's end a copy goes on in what it copied."""
    context = Context(ids([7, 1, 2, 3, 1]), 10)
    assert [copy_token(context.text, 5, 1, depth) for depth in range(8)] == [2, 3, 1, 2, 3, 1, 2, 3]


def test_rates_count_until_the_first_mistake() -> None:
    """Each copied token is counted under the tokens that agreed before it; after a wrong one nothing was drafted."""
    context = Context(ids([1, 2, 3, 4, 5, 6, 1, 2]), 10)
    rates = new_rates()
    before = rates.copy()
    rate_copy(rates, context.text, context.length, 1, 2, ids([3, 4, 9, 6]))
    assert (rates - before)[0, :6].tolist() == [0, 0, 1, 1, 0, 0]
    assert (rates - before)[1, :6].tolist() == [0, 0, 1, 1, 1, 0]
    assert rate(rates, 2) > rate(before, 2)
    assert rate(rates, 100) == rate(rates, 16)


def test_the_first_rates_rise_with_the_match() -> None:
    """Before anything was seen, more agreement means more trust, and never certainty."""
    shares = [rate(new_rates(), agreed) for agreed in range(17)]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.1 < shares[-1] < 1


def test_heaviest_first() -> None:
    """Parents stay before children where weights are equal, and the lightest nodes go."""
    tokens, parents = ids([10, 11, 12, 13, 14]), ids([-1, 0, -1, 2, 1])
    weights = np.array([0.25, 0.25, 0.5, 0.5, 0.1])
    kept = heaviest_first(tokens, parents, weights, 4)
    assert [array.tolist() for array in kept] == [[12, 13, 10, 11], [-1, 0, -1, 2], [0.5, 0.5, 0.25, 0.25]]
    assert kept[2].dtype == np.float32
