"""A text that grows: what is appended is there, whatever room the array had."""

from __future__ import annotations

import numpy as np

from speculant.integrations.growing_text import GrowingText


def test_it_grows() -> None:
    """Guards appending beyond the array's room, and that the first array is not the caller's."""
    first = np.arange(3, dtype=np.int32)
    text, expected = GrowingText(first), [0, 1, 2]
    first[:] = 9
    for length in (0, 1, 2, 50, 3):
        new = list(range(100, 100 + length))
        text.extend(new)
        expected += new
        assert text.tokens.tolist() == expected
        assert text.length == len(expected)
    assert text.tokens.dtype == np.int32
    assert GrowingText([]).tokens.tolist() == []
