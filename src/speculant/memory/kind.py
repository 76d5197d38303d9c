"""The interface of a memory kind: the operations of a drafter family on the memory files that its drafters write.

Each family defines its own kind and names it in a row of the registry (`Method.memory`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from speculant.core.errors import UnsupportedError
from speculant.core.tree import Array
from speculant.memory.file import Memory

Contents = tuple[Mapping[str, Array], Mapping[str, Any]]  # arrays and facts, as `write_memory` takes them


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKind:
    """The operations on memories of one kind.

    Attributes:
        name: name of the kind in file headers.
        describe: returns counts of what a memory holds, by name.
        empty: returns the contents that a drafter without any learning would write.
        merge: merges memories of one tokenizer into one that takes at most the given number of bytes once a drafter has
            loaded it. If entries of two files conflict, or not all of them fit, later files win.
    """

    name: str
    describe: Callable[[Memory], dict[str, int]]
    empty: Callable[[Memory], Contents]
    merge: Callable[[Sequence[Memory], int], Contents]


def merge_limit_error(size: int, limit: int) -> UnsupportedError:
    """Return the error for a merged memory of `size` bytes or more that exceeds the limit."""
    return UnsupportedError(
        f"the merged memory takes {-(-size >> 20)} MB or more, but the memory limit is {limit >> 20} MB. Raise the "
        "limit, or merge fewer files."
    )


def sum_by_pair(first: Array, second: Array, values: Array) -> tuple[Array, Array, Array]:
    """Return the distinct pairs (first, second), sorted, and the sum of the values Int[E] of each pair."""
    order = np.lexsort((second, first))
    first, second, values = first[order], second[order], values[order].astype(np.int64)
    if not len(first):
        return first, second, values
    starts = np.flatnonzero(np.append(True, (np.diff(first) != 0) | (np.diff(second) != 0)))
    return first[starts], second[starts], np.add.reduceat(values, starts)
