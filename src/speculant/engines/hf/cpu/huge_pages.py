"""Huge pages for the weights of a model, which every pass reads from end to end.

Memory allocated in 4 KB pages is scattered; hardware prefetchers stop at the end of each page, and every page needs a
TLB entry. Weights that torch allocated are therefore moved to 2 MB pages, keeping their addresses and contents
(`madvise` with MADV_COLLAPSE, Linux 6.1). For weights that are mapped from a file the kernel refuses; they are read as
fast if the file system keeps large folios.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import Tensor
from tqdm import tqdm

PAGE = 1 << 21
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
MIN_BYTES = 1 << 25  # of all weights together; smaller models stay in the caches
STEP = 1 << 26  # bytes between two checks of the clock
MAX_SECONDS = 20.0  # of this thread's CPU time; with fragmented memory the kernel moves other pages first
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def use_huge_pages(weights: Iterable[Tensor], *, seconds: float = MAX_SECONDS) -> int:
    """Move weights to huge pages; return how many bytes were moved or already there.

    Nothing is done if the administrator has disabled huge pages, or for less than 32 MB. Other threads may read the
    weights meanwhile.

    Args:
        weights: tensors in the CPU's memory.
        seconds: limit of the thread's CPU time; weights that have not been moved by then stay where they are.
    """
    ranges = list(whole_pages((weight.data_ptr(), weight.data_ptr() + weight.nbytes) for weight in weights))
    total = sum(end - start for start, end in ranges)
    if total < MIN_BYTES or not _is_allowed():
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    moved, began = 0, time.thread_time()
    with tqdm(
        total=total, desc="moving weights to huge pages", unit="B", unit_scale=True, leave=False, disable=None
    ) as bar:
        for start, end in ranges:
            madvise(start, end - start, MADV_HUGEPAGE)
            for place in range(start, end, STEP):
                size = min(STEP, end - place)
                if time.thread_time() - began > seconds:
                    return moved
                if not madvise(place, size, MADV_COLLAPSE):
                    moved += size
                bar.update(size)
    return moved


def whole_pages(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the whole huge pages in ranges of addresses; ranges less than a page apart are joined.

    Anything between two weights, such as a bias, moves with them.
    """
    start = end = 0
    for first, last in [*sorted(ranges), (1 << 62, 1 << 62)]:
        if first - end < PAGE:
            end = max(end, last)
            continue
        whole = -(-start // PAGE) * PAGE, end // PAGE * PAGE
        if whole[0] < whole[1]:
            yield whole
        start, end = first, last


def _is_allowed() -> bool:
    try:
        return "[never]" not in SETTING.read_text(encoding="ascii")
    except OSError:
        return False
