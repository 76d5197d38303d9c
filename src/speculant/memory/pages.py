"""Large arrays in anonymous mappings, whose memory goes back to the system as soon as they are freed.

A memory that grows frees one array after the other, each smaller than the next. `malloc` keeps freed blocks of up to
32 MB, which the larger arrays to come do not fit: the process would hold far more than the memory that is counted.
"""

from __future__ import annotations

import math
import mmap
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

_MINIMUM = 1 << 20  # bytes; `malloc` reuses smaller blocks


def zeros(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros; as with numpy, pages that are never written take no memory."""
    size = math.prod(np.atleast_1d(shape).tolist()) * np.dtype(dtype).itemsize
    if size < _MINIMUM:
        return np.zeros(shape, dtype)
    # Private, so that a forked process has a copy of its own.
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with suppress(OSError):  # a kernel may have no huge pages, which numpy asks for too
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape)
