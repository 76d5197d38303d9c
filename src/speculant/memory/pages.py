"""Large arrays in anonymous mappings, which return their memory to the system as soon as they are freed.

A growing memory frees a series of arrays, each smaller than the next. `malloc` keeps freed blocks of up to 32 MB, which
are too small for the next array: the process would hold far more memory than is accounted for.
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
    """Return an array of zeros; as with numpy, pages that are never written take no memory."""
    size = math.prod(np.atleast_1d(shape).tolist()) * np.dtype(dtype).itemsize
    if size < _MINIMUM:
        return np.zeros(shape, dtype)
    # Private, so that a forked process gets its own copy.
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with suppress(OSError):  # numpy requests huge pages too, but a kernel may not have them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape)
