"""The successor table on disk: sorted, read-only, memory-mapped, 4 to 8 bytes per tri-gram.

Contexts (a, b) are sorted; those with the same `a` are contiguous and found by an index over `a`, then by binary search
for b. A successor takes 4 bytes (3 for the token, 1 for the logarithm of its weight). A context takes 5.25 (3 for b, 1
for its length, 1 for the logarithm of its total weight, and a checkpoint every 16 contexts, from which the start of a
row is summed up). Bi-gram rows come last, under an `a` of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from speculant.core.tree import Array

LONGEST_FROZEN_ROW = 255
_STRIDE = 16
_LOG_STEPS = 16  # logarithmic steps per factor of two in weight: 2 % error
_MAXIMUM = 60_000  # maximum total of a row, to which larger ones are scaled down; the largest code represents 62,757
CHECKPOINT_BYTES = 4


class Frozen(NamedTuple):
    """The arrays of a frozen table with C contexts and E successors.

    Attributes:
        first: UInt32[V + 2], first context of each `a`; `a` = V holds the bi-gram rows.
        second: UInt8[C, 3], b of each context, little endian.
        length: UInt8[C], number of successors of each context, which are stored heaviest first.
        total: UInt8[C], 16 times the binary logarithm of the sum of their weights.
        checkpoint: UInt32[C / 16 + 1], first successor of every 16th context.
        token: UInt8[E, 3], tokens of the successors.
        weight: UInt8[E], 16 times the binary logarithm of their weights.
        decode: Int64[256], the weight that each code represents.
    """

    first: Array
    second: Array
    length: Array
    total: Array
    checkpoint: Array
    token: Array
    weight: Array
    decode: Array

    @property
    def nbytes(self) -> int:
        """Size on disk in bytes."""
        return sum(array.nbytes for array in self[:-1])

    def list_arrays(self) -> dict[str, Array]:
        """Return the arrays stored in a memory file, by name."""
        return {name: array for name, array in self._asdict().items() if name != "decode"}


def decode_table() -> Array:
    """Return the weight that each code represents, Int64[256]."""
    return np.rint(2 ** (np.arange(256) / _LOG_STEPS)).astype(np.int64)


def empty_frozen() -> Frozen:
    """Return a table without contexts."""
    return freeze(*(np.empty(0, np.int64) for _ in range(4)), vocabulary=0)


@njit(cache=True, nogil=True, inline="always")
def _three_bytes(array: Array, i: int) -> int:
    return np.int64(array[i, 0]) | np.int64(array[i, 1]) << 8 | np.int64(array[i, 2]) << 16


@njit(cache=True, nogil=True, inline="always")
def copy_frozen_row(
    base: Frozen, a: int, b: int, prior: int, normalised: bool, longest: int, tokens: Array, weights: Array
) -> int:
    """Copy the row of (a, b) into tokens and weights; return its length, 0 if unknown.

    If the row's total weight exceeds `prior`, it is scaled down to it; with `normalised`, it is also scaled up. At most
    `longest` successors are copied.
    """
    last = len(base.first) - 2
    a = min(a, last)
    low, high = np.int64(base.first[a]), np.int64(base.first[a + 1])
    while low < high:
        middle = (low + high) >> 1
        if _three_bytes(base.second, middle) < b:
            low = middle + 1
        else:
            high = middle
    if low >= np.int64(base.first[a + 1]) or _three_bytes(base.second, low) != b:
        return 0
    start = np.int64(base.checkpoint[low // _STRIDE])
    for i in range(low - low % _STRIDE, low):
        start += np.int64(base.length[i])
    total = base.decode[base.total[low]]
    length = min(np.int64(base.length[low]), longest)
    scale = prior / total if normalised or total > prior else 1.0
    for i in range(length):
        tokens[i] = _three_bytes(base.token, start + i)
        weights[i] = max(1, np.int64(base.decode[base.weight[start + i]] * scale + 0.5))
    return length


def freeze(
    a: Array, b: Array, c: Array, weight: Array, *, vocabulary: int, longest: int = LONGEST_FROZEN_ROW
) -> Frozen:
    """Return the table for columns Int[E]; a = vocabulary (or more) marks a bi-gram row.

    Each (a, b, c) may occur only once. Rows keep their `longest` heaviest successors; a row too heavy for the 8-bit
    code is scaled down.
    """
    a = np.minimum(a, vocabulary)
    order = np.lexsort((c, -weight, b, a))
    a, b, c, weight = a[order], b[order], c[order], weight[order].astype(np.float64)
    starts = np.flatnonzero(np.append(True, (np.diff(a) != 0) | (np.diff(b) != 0))) if len(a) else np.empty(0, int)
    rank = np.arange(len(a)) - np.repeat(starts, np.diff(np.append(starts, len(a))))
    kept = rank < longest
    a, b, c, weight, rank = a[kept], b[kept], c[kept], weight[kept], rank[kept]
    starts = np.flatnonzero(rank == 0)
    length = np.diff(np.append(starts, len(a)))
    total = np.add.reduceat(weight, starts) if len(starts) else np.empty(0)
    weight = weight * np.repeat(np.minimum(1, _MAXIMUM / np.maximum(total, 1)), length)
    checkpoints = starts[::_STRIDE] if len(starts) else np.zeros(1, int)
    table = Frozen(
        first=np.searchsorted(a[starts], np.arange(vocabulary + 2)).astype(np.uint32),
        second=_pack(b[starts]),
        length=length.astype(np.uint8),
        total=_logarithm(np.minimum(total, _MAXIMUM)),
        checkpoint=checkpoints.astype(np.uint32),
        token=_pack(c),
        weight=_logarithm(weight),
        decode=decode_table(),
    )
    for array in table:
        array.flags.writeable = False  # like mapped arrays, so that the kernels are compiled for one type only
    return table


def thaw(base: Frozen) -> tuple[Array, Array, Array, Array]:
    """Return a, b, c and weight of every successor: the inverse of `freeze`."""
    length = base.length.astype(np.int64)
    a = np.repeat(np.arange(len(base.first) - 1), np.diff(base.first.astype(np.int64)))
    return (
        np.repeat(a, length),
        np.repeat(_unpack(base.second), length),
        _unpack(base.token),
        base.decode[base.weight],
    )


def count_frozen_bytes(successors: int, contexts: int, vocabulary: int) -> int:
    """Return the size in bytes of a frozen table with these counts."""
    checkpoints = max(1, -(-contexts // _STRIDE))
    return 4 * (successors + contexts + checkpoints + vocabulary + 2) + contexts


def heaviest_rows(base: Frozen, chosen: Array, room: int) -> Array:
    """Return Bool[E], which successors belong to the heaviest chosen rows that fit into `room` bytes.

    Args:
        base: the table.
        chosen: Bool[E], true for all successors of a row or for none.
        room: maximum bytes, not counting the index over the vocabulary.
    """
    length = base.length.astype(np.int64)
    row = np.repeat(np.arange(len(length)), length)
    rows = np.unique(row[chosen])
    weight = np.bincount(row, base.decode[base.weight], len(length))
    rows = rows[np.argsort(-weight[rows], kind="stable")]
    bytes_of_rows = 4 * length[rows] + 5 + 4 / _STRIDE
    kept = np.zeros(len(length), bool)
    kept[rows[np.cumsum(bytes_of_rows) <= room]] = True
    return kept[row]


def _logarithm(weight: Array) -> Array:
    return np.clip(np.rint(_LOG_STEPS * np.log2(np.maximum(weight, 1))), 0, 255).astype(np.uint8)


def _pack(values: Array) -> Array:
    return np.ascontiguousarray(values.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3])


def _unpack(packed: Array) -> Array:
    return packed[:, 0].astype(np.int64) | packed[:, 1].astype(np.int64) << 8 | packed[:, 2].astype(np.int64) << 16
