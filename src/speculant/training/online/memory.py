"""The memory files of online distillation: a drafter's weights, and the windows that it learns from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculant.core.errors import UnsupportedError
from speculant.core.tree import Array
from speculant.memory.file import Memory
from speculant.memory.kind import Contents, MemoryKind
from speculant.training.online.drafter import KIND


def describe(memory: Memory) -> dict[str, int]:
    """Return the number of weights, windows and tokens in a memory."""
    weights = sum(array.size for name, array in memory.arrays.items() if name.startswith("weights/"))
    windows = memory.arrays.get("windows/lengths", np.empty(0, np.int32))
    return {"weights": weights, "windows": len(windows), "tokens": int(windows.sum())}


def empty(_memory: Memory) -> Contents:
    """Return a memory without windows and weights, which leaves a drafter's weights unchanged."""
    arrays: dict[str, Array] = {
        "windows/lengths": np.empty(0, np.int32),
        "windows/numbers": np.empty(0, np.int64),
        "windows/greedy": np.empty(0, np.bool_),
    }
    return arrays, {"added": 0, "requests": 0}


def merge(_memories: Sequence[Memory], _limit: int) -> Contents:
    """Raise an error: the weights of two drafters cannot be merged.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError("weights that were learned online cannot be merged; keep the file of the latest.")


ONLINE = MemoryKind(name=KIND, describe=describe, empty=empty, merge=merge)
