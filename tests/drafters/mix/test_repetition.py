"""Repetitions: found where a search through the whole text finds them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant.drafters.mix.repetition import LENGTHS, NOWHERE, SHORTEST, index, length_band, seek
from tables import ids


def indexed(text: np.ndarray, slots: int = 1 << 16) -> np.ndarray:
    """Return the index of a whole text."""
    heads = np.zeros(slots, np.int32)
    for i in range(len(text)):
        index(heads, text, i)
    return heads


def agreeing(text: list[int], place: int, window: list[int]) -> int:
    """Return how many tokens before the place in the text are those at the end of the window."""
    length = 0
    while length < min(place, len(window)) and text[place - 1 - length] == window[-1 - length]:
        length += 1
    return length


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), max_size=9))
def test_finds_the_latest_place(text: list[int], window: list[int]) -> None:
    """The last place that three tokens or more lead up to, with as many as agree, the window's length at most."""
    lengths = [agreeing(text, place, window) for place in range(len(text))]
    places = [place for place, length in enumerate(lengths) if length >= SHORTEST]
    expected = (places[-1], lengths[places[-1]]) if places else (NOWHERE, 0)
    assert seek(indexed(ids(text)), ids(text), ids(window)) == expected


@pytest.mark.parametrize("slots", [1, 2, 16])
def test_a_crowded_index_misses_but_never_lies(slots: int) -> None:
    """Where other tokens took a slot nothing is found, or a place where the tokens really stand."""
    text = np.random.default_rng(slots).integers(0, 4, 300).astype(np.int32)
    heads = indexed(text, slots)
    found = 0
    for end in range(4, 300):
        window = text[max(0, end - 6) : end]
        place, length = seek(heads, text, window)
        assert length == (0 if place == NOWHERE else agreeing(text.tolist(), place, window.tolist()))
        found += place != NOWHERE
    assert 0 < found < 296


def test_too_short_a_text() -> None:
    """Fewer than three tokens repeat nothing, and the first three of a text follow nothing."""
    text = ids([5, 5, 5])
    assert indexed(text).max() == 0
    assert seek(indexed(text), text, text) == (NOWHERE, 0)
    assert seek(indexed(ids([5, 5, 5, 5])), ids([5, 5, 5, 5]), text) == (3, 3)
    assert seek(indexed(text), text, ids([])) == (NOWHERE, 0)


def test_length_bands() -> None:
    """Ten bands, each used, longer repetitions never in a lower one."""
    bands = [length_band(length) for length in range(SHORTEST, 500)]
    assert bands == sorted(bands)
    assert set(bands) == set(range(LENGTHS))
    last = [length for length in range(SHORTEST, 499) if length_band(length) != length_band(length + 1)]
    assert last == [3, 4, 5, 6, 8, 11, 15, 23, 31]
