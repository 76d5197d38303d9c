"""A bounded hash table from context hashes to short rows of the tokens that followed, latest first.

A cell is a row of `width` 4-byte entries, most recently seen token first. An entry stores the token (20 bits), its
weight, which is a decayed count in eighths (7 bits), and, in the first four entries, part of the context's check (5
bits each). Eight cells make a bucket, which is two cache lines at a width of four.

The leading bits of the hash select the bucket, and the next twenty are the check. When a table fills up, it doubles as
long as its limit allows; the bit that decides which half a cell moves to is part of the check, so contexts themselves
need not be stored. Once the table cannot grow, a new context enters the middle of a full bucket and the last cell is
evicted. Every repeated use moves a cell one place forward, so recency and use decide which cells are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from speculant.core.tree import Array
from speculant.memory.pages import zeros

MAX_TOKENS = 1 << 20
UNIT = 8  # the weight of one observation
HEAVIEST = 127

PLACES = 8
_ENTRANCE = 3  # where new cells enter a full bucket; the cells before it have been used again
_TOKEN = np.uint32(MAX_TOKENS - 1)
_BODY = np.uint32((1 << 27) - 1)
CHECK_BITS = 20
USED, _BITS, _FIRST_BITS = 0, 1, 2
_FULL = 0.55


class Cells(NamedTuple):
    """One table.

    Attributes:
        entries: UInt32[B, 8, W], B buckets of eight cells of W entries; zero where empty.
        facts: Int64[3], number of cells in use, the binary logarithm of B, and its initial value.
    """

    entries: Array
    facts: Array


def new_cells(width: int, limit: int, *, first_bits: int) -> Cells:
    """Return an empty table of 2 ** first_bits buckets, or fewer if they would exceed `limit` bytes."""
    bits = max(0, min(first_bits, (limit // (4 * PLACES * width)).bit_length() - 1))
    return Cells(zeros((1 << bits, PLACES, width), np.uint32), np.array([0, bits, bits], np.int64))


def room(cells: Cells, limit: int) -> int:
    """Return how many cells may be in use before the table should grow; a huge number if it cannot grow.

    It can grow if its check has bits left and twice its size fits into `limit` bytes.
    """
    _, bits, first = cells.facts.tolist()
    if 2 * cells.entries.nbytes > limit or bits - first >= CHECK_BITS - 4:
        return 1 << 62
    return int(_FULL * PLACES * len(cells.entries))


def grow_cells(cells: Cells, limit: int) -> Cells:
    """Return the table, doubled if it has more cells in use than `room` allows."""
    buckets, _, width = cells.entries.shape
    used, bits, first = cells.facts.tolist()
    if used <= room(cells, limit):
        return cells
    larger = Cells(zeros((2 * buckets, PLACES, width), np.uint32), np.array([used, bits + 1, first], np.int64))
    _split(cells, larger)
    return larger


@njit(cache=True, nogil=True, inline="always")
def check_of(row: Array) -> int:
    """Return the check of a row's context."""
    return (
        np.int64(row[0] >> np.uint32(27))
        | np.int64(row[1] >> np.uint32(27)) << 5
        | np.int64(row[2] >> np.uint32(27)) << 10
        | np.int64(row[3] >> np.uint32(27)) << 15
    )


@njit(cache=True, nogil=True, inline="always")
def put(row: Array, i: int, body: np.uint32, check: int) -> None:
    """Write entry i: token, weight and its part of the check."""
    row[i] = body | (np.uint32((check >> 5 * i) & 31) << np.uint32(27)) if i < 4 else body


@njit(cache=True, nogil=True, inline="always")
def place_of(cells: Cells, context: np.uint64) -> tuple[int, int]:
    """Return the bucket and the check for a context's hash."""
    bits, first = cells.facts[_BITS], cells.facts[_FIRST_BITS]
    bucket = np.int64(context >> np.uint64(64 - bits)) if bits > 0 else np.int64(0)
    return bucket, np.int64((context >> np.uint64(64 - CHECK_BITS - first)) & np.uint64((1 << CHECK_BITS) - 1))


@njit(cache=True, nogil=True, inline="always")
def _copy_row(row: Array, copy: Array) -> None:
    for i in range(len(row)):  # assigning arrays takes seconds to compile
        copy[i] = row[i]


@njit(cache=True, nogil=True)
def _split(cells: Cells, larger: Cells) -> None:
    bits, first = cells.facts[_BITS], cells.facts[_FIRST_BITS]
    deciding = CHECK_BITS - 1 - (bits - first)
    for bucket in range(len(cells.entries)):
        filled = [0, 0]
        for place in range(PLACES):
            row = cells.entries[bucket, place]
            if row[0] != np.uint32(0):
                side = (check_of(row) >> deciding) & 1
                _copy_row(row, larger.entries[2 * bucket + side, filled[side]])
                filled[side] += 1


@njit(cache=True, nogil=True)
def find(cells: Cells, context: np.uint64) -> int:
    """Return the index of the context's cell, which is 8 * bucket + place, or -1."""
    bucket, check = place_of(cells, context)
    for place in range(PLACES):
        row = cells.entries[bucket, place]
        if row[0] == np.uint32(0):
            return -1
        if check_of(row) == check:
            return bucket * PLACES + place
    return -1


@njit(cache=True, nogil=True)
def read(cells: Cells, cell: int, tokens: Array, weights: Array) -> int:
    """Copy a cell's row into `tokens` and `weights`, latest first, and return its length."""
    row = cells.entries[cell // PLACES, cell % PLACES]
    for i in range(len(row)):
        weight = (row[i] & _BODY) >> np.uint32(20)
        if weight == np.uint32(0):
            return i
        tokens[i], weights[i] = row[i] & _TOKEN, weight
    return len(row)


@njit(cache=True, nogil=True)
def look_up(cells: Cells, context: np.uint64, tokens: Array, weights: Array, line: int) -> int:
    """Copy the context's row into a line of tokens and weights, latest first; return its length, 0 if there is none."""
    bucket, check = place_of(cells, context)
    entries = cells.entries
    for place in range(PLACES):
        if entries[bucket, place, 0] == np.uint32(0):
            return 0
        if check_of(entries[bucket, place]) == check:
            for i in range(entries.shape[2]):
                entry = entries[bucket, place, i]
                weight = (entry & _BODY) >> np.uint32(20)
                if weight == np.uint32(0):
                    return i
                tokens[line, i], weights[line, i] = entry & _TOKEN, weight
            return entries.shape[2]
    return 0


@njit(cache=True, nogil=True)
def claim(cells: Cells, context: np.uint64) -> int:
    """Return the context's cell, moved one place forward, or an empty one in its bucket, evicting a cell if needed."""
    bucket, check = place_of(cells, context)
    entries = cells.entries[bucket]
    for place in range(PLACES):
        row = entries[place]
        if row[0] == np.uint32(0):
            cells.facts[USED] += 1
            return bucket * PLACES + place
        if check_of(row) == check:
            if place > 0:
                for i in range(len(row)):
                    entries[place, i], entries[place - 1, i] = entries[place - 1, i], entries[place, i]
                place -= 1
            return bucket * PLACES + place
    for place in range(PLACES - 1, _ENTRANCE, -1):
        _copy_row(entries[place - 1], entries[place])
    entries[_ENTRANCE] = np.uint32(0)
    return bucket * PLACES + _ENTRANCE


@njit(cache=True, nogil=True)
def observe(cells: Cells, context: np.uint64, token: int, memory: int) -> None:
    """Learn that `token` followed the context; weights decay to keep the row's total within `memory`."""
    cell = claim(cells, context)
    _, check = place_of(cells, context)
    row = cells.entries[cell // PLACES, cell % PLACES]
    length, total, at = 0, 0, -1
    while length < len(row) and row[length] & _BODY != np.uint32(0):
        total += np.int64((row[length] & _BODY) >> np.uint32(20))
        if row[length] & _TOKEN == np.uint32(token):
            at = length
        length += 1
    kept, decays = memory - UNIT, total + UNIT > memory
    weight = UNIT
    if at >= 0:
        before: int = np.int64((row[at] & _BODY) >> np.uint32(20))
        weight += max(1, before * kept // total) if decays else before
    else:
        at = min(length, len(row) - 1)
    for i in range(min(length, len(row)) - 1, -1, -1):
        if i == at:
            continue
        body = row[i] & _BODY
        if decays:
            lighter = max(1, np.int64(body >> np.uint32(20)) * kept // total)
            body = (body & _TOKEN) | np.uint32(lighter) << np.uint32(20)
        put(row, i + 1 if i < at else i, body, check)
    put(row, 0, np.uint32(token) | np.uint32(min(weight, HEAVIEST)) << np.uint32(20), check)
    for i in range(max(1, length), 4):
        put(row, i, row[i] & _BODY, check)


@njit(cache=True, nogil=True)
def blend(
    cells: Cells, context: np.uint64, ids: Array, gains: Array, memory: int, tokens: Array, weights: Array
) -> None:
    """Add gains Int64[k], in eighths, to the weights of ids Int32[k] in the context's row, heaviest first.

    Weights decay to keep the row's total within `memory`. `tokens` and `weights` are scratch space for width + k
    entries.
    """
    total = gains.sum()
    if total == 0:
        return  # a claimed cell must not stay empty
    cell = claim(cells, context)
    _, check = place_of(cells, context)
    length = read(cells, cell, tokens, weights)
    kept = memory - total
    before = weights[:length].sum()
    if before > kept:
        for i in range(length):
            weights[i] = max(1, weights[i] * kept // before)
    for k in range(len(ids) - 1, -1, -1):  # backwards: of equal weights the more probable then comes first
        if gains[k] == 0:
            continue
        at = 0
        while at < length and tokens[at] != ids[k]:
            at += 1
        if at == length:
            weights[at] = 0
            length += 1
        weight = min(weights[at] + gains[k], HEAVIEST)
        while at > 0 and weights[at - 1] <= weight:
            tokens[at], weights[at] = tokens[at - 1], weights[at - 1]
            at -= 1
        tokens[at], weights[at] = ids[k], weight
    row = cells.entries[cell // PLACES, cell % PLACES]
    for i in range(len(row)):
        body = np.uint32(0)
        if i < length:
            body = np.uint32(tokens[i]) | np.uint32(weights[i]) << np.uint32(20)
        put(row, i, body, check)
