"""The store of windows: bounded, split, saved."""

from __future__ import annotations

import numpy as np

from speculant.training.online.buffer import HELD_OUT, WindowBuffer
from speculant.training.online.window import TextWindow


def window(number: int, tokens: int = 10) -> TextWindow:
    """Return a window whose tokens are its number."""
    return TextWindow(
        tokens=np.full(tokens, number, np.int32),
        known=np.ones(tokens, np.bool_),
        wrong=np.zeros(tokens, np.int32),
        greedy=number % 2 == 0,
        top_ids=np.zeros((tokens, 2), np.int32),
        top_logits=np.zeros((tokens, 2), np.float16),
    )


def test_bytes_are_bounded() -> None:
    """Guards the limit that the user sets: the oldest go first, and one that is too large is never kept."""
    buffer = WindowBuffer(5 * window(0).size + 1)
    for number in range(20):
        buffer.add(window(number))
        assert buffer.size <= buffer.limit
    assert len(buffer) == 5
    buffer.add(window(20, tokens=1000))
    train, held_out = buffer.split()
    assert sorted(int(each.tokens[0]) for each in [*held_out, *(each for _, each in train)]) == [15, 16, 17, 18, 19]
    assert buffer.added == 21


def test_windows_held_out_stay_held_out() -> None:
    """Guards the judge of updates: a window is never trained on, whatever comes and goes around it."""
    buffer = WindowBuffer(12 * window(0).size)
    trained, judged = set[int](), set[int]()
    for number in range(40):
        buffer.add(window(number))
        train, held_out = buffer.split()
        trained |= {int(each.tokens[0]) for _, each in train}
        judged |= {int(each.tokens[0]) for each in held_out}
    assert not trained & judged
    assert len(judged) == 40 // HELD_OUT


def test_saved_and_restored() -> None:
    """Guards the memory file: the same windows under the same numbers, the latest where fewer fit."""
    buffer = WindowBuffer(1 << 20)
    for number in range(9):
        buffer.add(window(number, tokens=5 + number))
    same, smaller = WindowBuffer(1 << 20), WindowBuffer(3 * window(0, 13).size)
    for restored in (same, smaller):
        restored.restore(*buffer.arrays())
        assert restored.added == 9
    assert [number for number, _ in same.split()[0]] == [number for number, _ in buffer.split()[0]]
    for one, other in zip(same.split()[1], buffer.split()[1], strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.greedy == other.greedy
    assert len(smaller) == 3
    assert smaller.size <= smaller.limit
