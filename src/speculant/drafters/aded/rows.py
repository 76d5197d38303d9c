"""Rows of a tri-gram table: for each context (a, b), the tokens that followed and their weights, in one hash table.

A row with one successor is stored in its hash slot (12 bytes), a longer one in a block of the pool (6 bytes per
successor). A row that outgrows its block frees it for another row of that size. The same table stores bi-gram rows,
under the context (NONE, b). table.py defines how rows are learned, and how such tables are stacked and bounded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from speculant.core.tree import Array
from speculant.memory.pages import zeros

NONE = (1 << 21) - 1
MAX_VOCABULARY = NONE
LONGEST_ROW = 256
UNIT = 64  # the weight of one observation; a row's weights are decayed counts in these units
WEIGHT_LIMIT = 8191
LOAD = 0.75  # maximum share of the slots in use
SLOT_BYTES, POOL_BYTES = 12, 6  # per slot, and per successor in a block
USED, TAIL, SUCCESSORS = 0, 1, 2  # indices into a level's counts

_BLOCK_CLASSES = 8  # blocks of 2, 4, ... 256 successors


class TableLevel(NamedTuple):
    """One hash table.

    Attributes:
        slots: UInt64[S]; 0 if empty, else context (42 bits), row length (9), weight of a single successor (13).
        values: UInt32[S], the single successor, or the start of the row's block.
        tokens, weights: UInt32[P], UInt16[P], pool of blocks, each an ordered row.
        free: Int64[8], one plus the first free block of each size, 0 for none; free blocks are linked through `tokens`.
        counts: Int64[3], number of slots in use, end of the used pool, number of successors stored.
    """

    slots: Array
    values: Array
    tokens: Array
    weights: Array
    free: Array
    counts: Array


def new_level(slots: int, pool: int) -> TableLevel:
    """Return an empty level with room for `slots` contexts and `pool` successors in blocks."""
    return TableLevel(
        zeros(slots, np.uint64),
        zeros(slots, np.uint32),
        zeros(pool, np.uint32),
        zeros(pool, np.uint16),
        np.zeros(_BLOCK_CLASSES, np.int64),
        np.zeros(3, np.int64),
    )


def level_bytes(level: TableLevel) -> int:
    """Return the size of a level's arrays in bytes."""
    return sum(array.nbytes for array in level)


@njit(cache=True, nogil=True, inline="always")
def context_of(a: int, b: int) -> np.uint64:
    """Return the 42-bit key of the context (a, b)."""
    return (np.uint64(a) << np.uint64(21)) | np.uint64(b)


@njit(cache=True, nogil=True, inline="always")
def find_row(level: TableLevel, context: np.uint64) -> int:
    """Return the context's slot, or -1 - s, where s is the empty slot to insert it at."""
    slots = level.slots
    size = np.uint64(len(slots))
    mixed = (context * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    slot = (mixed * size) >> np.uint64(32)
    while True:
        word = slots[slot]
        if word == np.uint64(0):
            return -1 - np.int64(slot)
        if word >> np.uint64(22) == context:
            return np.int64(slot)
        slot += np.uint64(1)
        if slot == size:
            slot = np.uint64(0)


@njit(cache=True, nogil=True, inline="always")
def _length(word: np.uint64) -> int:
    return np.int64((word >> np.uint64(13)) & np.uint64(511))


@njit(cache=True, nogil=True, inline="always")
def _word(context: np.uint64, length: int, weight: int) -> np.uint64:
    return (context << np.uint64(22)) | (np.uint64(length) << np.uint64(13)) | np.uint64(weight)


@njit(cache=True, nogil=True, inline="always")
def read_row(level: TableLevel, slot: int, tokens: Array, weights: Array) -> int:
    """Copy a row into `tokens` and `weights`, and return its length."""
    word = level.slots[slot]
    length = _length(word)
    if length == 1:
        tokens[0] = level.values[slot]
        weights[0] = np.int64(word & np.uint64(WEIGHT_LIMIT))
        return 1
    start = np.int64(level.values[slot])
    for i in range(length):
        tokens[i] = level.tokens[start + i]
        weights[i] = level.weights[start + i]
    return length


@njit(cache=True, nogil=True)
def _class_of(length: int) -> int:
    """Return the c for which a block of 2 << c successors holds the row."""
    c = 0
    while (2 << c) < length:
        c += 1
    return c


@njit(cache=True, nogil=True)
def block_length(length: int) -> int:
    """Return the capacity, in successors, of the block for a row of this length."""
    return 2 << _class_of(length)


@njit(cache=True, nogil=True)
def _allocate(level: TableLevel, c: int) -> int:
    block = level.free[c]
    if block > 0:
        level.free[c] = np.int64(level.tokens[block - 1])
        return block - 1
    start = level.counts[TAIL]
    level.counts[TAIL] += 2 << c
    return start


@njit(cache=True, nogil=True)
def write_row(level: TableLevel, slot: int, context: np.uint64, length: int, tokens: Array, weights: Array) -> None:
    """Write a row to a slot, with a block of suitable size if it has several successors."""
    before = _length(level.slots[slot]) if level.slots[slot] != np.uint64(0) else 0
    if before == 0:
        level.counts[USED] += 1
    level.counts[SUCCESSORS] += length - before
    if length == 1:
        level.slots[slot] = _word(context, 1, weights[0])
        level.values[slot] = tokens[0]
        return
    start = np.int64(level.values[slot])
    if before < 2 or _class_of(before) != _class_of(length):
        if before >= 2:
            level.tokens[start] = level.free[_class_of(before)]
            level.free[_class_of(before)] = start + 1
        start = _allocate(level, _class_of(length))
        level.values[slot] = start
    for i in range(length):
        level.tokens[start + i] = tokens[i]
        level.weights[start + i] = weights[i]
    level.slots[slot] = _word(context, length, 0)


@njit(cache=True, nogil=True)
def has_room(level: TableLevel, rows: int, longest: int) -> bool:
    """Return whether `rows` more rows of up to `longest` successors can be written."""
    ending = level.counts[TAIL] + rows * block_length(longest)
    return level.counts[USED] + rows <= LOAD * len(level.slots) and ending <= len(level.tokens)


@njit(cache=True, nogil=True)
def copy_rows(source: TableLevel, target: TableLevel) -> None:
    """Write all rows of a level into an empty level."""
    tokens = np.empty(LONGEST_ROW, np.int64)
    weights = np.empty(LONGEST_ROW, np.int64)
    for slot in range(len(source.slots)):
        word = source.slots[slot]
        if word != np.uint64(0):
            context = word >> np.uint64(22)
            length = read_row(source, slot, tokens, weights)
            write_row(target, -1 - find_row(target, context), context, length, tokens, weights)


@njit(cache=True, nogil=True)
def export(level: TableLevel, above: TableLevel) -> tuple[Array, Array, Array, Array]:
    """Return a, b, c and weight of every successor, except in rows that the level above also contains."""
    n = level.counts[SUCCESSORS]
    a, b, c = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    weight = np.empty(n, np.int64)
    tokens = np.empty(LONGEST_ROW, np.int64)
    weights = np.empty(LONGEST_ROW, np.int64)
    at = 0
    for slot in range(len(level.slots)):
        word = level.slots[slot]
        if word == np.uint64(0):
            continue
        context = word >> np.uint64(22)
        if find_row(above, context) >= 0:
            continue
        for i in range(read_row(level, slot, tokens, weights)):
            a[at] = np.int64(context >> np.uint64(21))
            b[at] = np.int64(context & np.uint64(NONE))
            c[at] = tokens[i]
            weight[at] = weights[i]
            at += 1
    return a[:at], b[:at], c[:at], weight[:at]
