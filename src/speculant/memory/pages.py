"""Large arrays in memory of their own, which goes back to the system as soon as they are dropped.

A memory that grows leaves larger and larger arrays behind. `malloc` keeps those of up to 32 MB for later ones, which
are too large for them: the process then holds far more than the memory that is counted.
"""

from __future__ import annotations

import math
import mmap
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

_LEAST = 1 << 20  # bytes; smaller ones are found again by whoever needs as many


def zeros(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros; as with numpy, pages that are never written take no memory."""
    size = math.prod(np.atleast_1d(shape).tolist()) * np.dtype(dtype).itemsize
    if size < _LEAST:
        return np.zeros(shape, dtype)
    # Private, so that a process that is forked has a copy of its own.
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with suppress(OSError):  # a kernel may have no huge pages, which numpy asks for too
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape)
