"""Arrays whose memory goes back to the system: like numpy's, but for where they lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numba import typeof

from speculant.memory.pages import zeros


def resident() -> int:
    """Return the bytes that this process has resident."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


@pytest.mark.parametrize("shape", [0, 1, 5, (3, 4), (1 << 18) - 1, 1 << 18, (1 << 17, 8), (0, 8)])
@pytest.mark.parametrize("dtype", [np.int32, np.uint64, np.uint16])
def test_they_are_numpys(shape: int | tuple[int, ...], dtype: type) -> None:
    """Same shape, dtype and zeros, writable, and one type for the kernels, whatever the size."""
    made, usual = zeros(shape, dtype), np.zeros(shape, dtype)
    assert (made.shape, made.dtype, made.nbytes) == (usual.shape, usual.dtype, usual.nbytes)
    assert typeof(made) == typeof(usual)
    assert not made.any()
    made[...] = 7
    assert (made == 7).all()


def test_what_is_dropped_is_given_back() -> None:
    """A table of 16 MB would stay with malloc once a larger one was freed."""
    before = resident()
    for _ in range(3):
        array = zeros(16 << 20, np.uint8)
        array.fill(1)
        assert resident() > before + (12 << 20)
        del array
        assert resident() < before + (4 << 20)


def test_it_lives_as_long_as_a_view() -> None:
    """The map is not undone under whoever still reads a part."""
    array = zeros((1 << 17, 8), np.int32)
    array[-1] = 3
    part = array[-1]
    del array
    assert part.tolist() == [3] * 8
