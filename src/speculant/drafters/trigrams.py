"""The adaptive successor table behind ADED: for a context (a, b), which tokens followed and how often.

ADED (Liu et al., "Adaptive Draft-Verification for Efficient Large Language Model Decoding", AAAI 2025,
arXiv 2407.12021) stands in for the target by a sparse matrix of tri-gram weights that is nudged by every
token the target commits. Here the matrix is a hash table with three levels, looked up in this order:

    young    what was learned or used lately
    old      what was young before; a row that is used again moves back up
    base     a read-only table from a corpus or an earlier run, mapped from disk (frozen.py)

When young has grown to half of the byte limit it becomes old, and the former old is dropped: the memory is
bounded, and recency and use decide what stays. A row with one successor lives in its hash slot (12 bytes),
a longer one in a block of the pool (6 bytes a successor). The same table holds bi-gram rows, under the
context (NONE, b).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from speculant.drafters.frozen import Frozen, frozen_row

Array = npt.NDArray[Any]

NONE = (1 << 21) - 1
MAX_VOCABULARY = NONE
LONGEST_ROW = 256
UNIT = 64  # the weight of one observation; a row's weights are decayed counts in these units
WEIGHT_LIMIT = 8191

_BLOCK_CLASSES = 8  # blocks of 2, 4, ... 256 successors
_USED, _TAIL, _SUCCESSORS = 0, 1, 2
_LOAD = 0.75
_BLOCK_BYTES, _SLOT_BYTES = 6, 12


class Level(NamedTuple):
    """One hash table.

    Attributes:
        slots: UInt64[S]; 0 if empty, else context (42 bits), row length (9), weight of a single successor (13).
        values: UInt32[S], the single successor, or where the row's block starts.
        tokens, weights: UInt32[P], UInt16[P], the pool of blocks, each a row in order.
        free: Int64[8], the first free block of each size, plus one; free blocks are linked through `tokens`.
        counts: Int64[3], slots in use, end of the used pool, successors held.
    """

    slots: Array
    values: Array
    tokens: Array
    weights: Array
    free: Array
    counts: Array


class Rule(NamedTuple):
    """How a row learns, in units of 1/64 observation.

    Attributes:
        gain: what one observation adds.
        ceiling: the largest weight of a successor.
        memory: a row's total is held at this by decaying all its weights; 0 for no decay.
        prior: how much weight a row from `base` starts with at the most.
        longest: successors a row may hold; the smallest makes room.
        bigrams: whether (NONE, b) is learned beside (a, b).
    """

    gain: int
    ceiling: int
    memory: int
    prior: int
    longest: int
    bigrams: bool


def new_level(slots: int, pool: int) -> Level:
    """Return an empty level with room for `slots` contexts and `pool` successors in blocks."""
    return Level(
        np.zeros(slots, np.uint64),
        np.zeros(slots, np.uint32),
        np.zeros(pool, np.uint32),
        np.zeros(pool, np.uint16),
        np.zeros(_BLOCK_CLASSES, np.int64),
        np.zeros(3, np.int64),
    )


def level_bytes(level: Level) -> int:
    """Return the bytes that the arrays of a level take."""
    return sum(array.nbytes for array in level)


@njit(cache=True, nogil=True, inline="always")
def _context(a: int, b: int) -> np.uint64:
    return (np.uint64(a) << np.uint64(21)) | np.uint64(b)


@njit(cache=True, nogil=True, inline="always")
def _find(level: Level, context: np.uint64) -> int:
    """Return the context's slot, or -1 - s where s is the empty slot it would take."""
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
def _read(level: Level, slot: int, tokens: Array, weights: Array) -> int:
    """Copy a row out and return its length."""
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
def lookup(young: Level, old: Level, base: Frozen, a: int, b: int, rule: Rule, tokens: Array, weights: Array) -> int:
    """Copy the row of (a, b) into tokens and weights, heaviest first; return its length, 0 if unknown."""
    context = _context(a, b)
    slot = _find(young, context)
    if slot >= 0:
        return _read(young, slot, tokens, weights)
    slot = _find(old, context)
    if slot >= 0:
        return _read(old, slot, tokens, weights)
    return frozen_row(base, a, b, rule.prior, rule.longest, tokens, weights)


@njit(cache=True, nogil=True)
def _class_of(length: int) -> int:
    """Return c such that a block of 2 << c successors holds the row."""
    c = 0
    while (2 << c) < length:
        c += 1
    return c


@njit(cache=True, nogil=True)
def _allocate(level: Level, c: int) -> int:
    block = level.free[c]
    if block > 0:
        level.free[c] = np.int64(level.tokens[block - 1])
        return block - 1
    start = level.counts[_TAIL]
    level.counts[_TAIL] += 2 << c
    return start


@njit(cache=True, nogil=True)
def _write(level: Level, slot: int, context: np.uint64, length: int, tokens: Array, weights: Array) -> None:
    """Put a row into a slot, in a block of fitting size if it has several successors."""
    before = _length(level.slots[slot]) if level.slots[slot] != np.uint64(0) else 0
    if before == 0:
        level.counts[_USED] += 1
    level.counts[_SUCCESSORS] += length - before
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
def _observe(length: int, c: int, gain: int, rule: Rule, tokens: Array, weights: Array) -> int:
    """Add `gain` to successor c of the row and keep it in order, recent first among equals; return its length."""
    total = gain
    place = -1
    for i in range(length):
        total += weights[i]
        if tokens[i] == c:
            place = i
    if rule.memory > 0 and total > rule.memory:
        excess = total - rule.memory
        for i in range(length):
            weights[i] = max(1, weights[i] - (weights[i] * excess + total - 1) // total)
    if place < 0:
        place = min(length, rule.longest - 1)
        length = max(length, place + 1)
        tokens[place] = c
        weights[place] = 0
    weight = min(weights[place] + gain, rule.ceiling)
    while place > 0 and weights[place - 1] <= weight:
        tokens[place], weights[place] = tokens[place - 1], weights[place - 1]
        place -= 1
    tokens[place], weights[place] = c, weight
    return length


@njit(cache=True, nogil=True)
def bump(
    young: Level,
    old: Level,
    base: Frozen,
    a: int,
    b: int,
    c: int,
    gain: int,
    rule: Rule,
    tokens: Array,
    weights: Array,
) -> None:
    """Learn that c followed (a, b); a row known to a lower level is brought up first."""
    context = _context(a, b)
    slot = _find(young, context)
    if slot >= 0:
        length = _read(young, slot, tokens, weights)
    else:
        slot = -1 - slot
        below = _find(old, context)
        if below >= 0:
            length = _read(old, below, tokens, weights)
        else:
            length = frozen_row(base, a, b, rule.prior, rule.longest, tokens, weights)
    length = _observe(length, c, gain, rule, tokens, weights)
    _write(young, slot, context, length, tokens, weights)


@njit(cache=True, nogil=True)
def has_room(level: Level, rows: int, longest: int) -> bool:
    """Say whether as many rows can be written, whatever their lengths."""
    block = 2 << _class_of(longest)
    return level.counts[_USED] + rows <= _LOAD * len(level.slots) and level.counts[_TAIL] + rows * block <= len(
        level.tokens
    )


@njit(cache=True, nogil=True)
def learn(young: Level, old: Level, base: Frozen, text: Array, start: int, rule: Rule) -> int:
    """Learn what followed what in text[start:], with the tokens before as context.

    Return where it stopped: len(text), or earlier if young has no room left.
    """
    tokens = np.empty(LONGEST_ROW, np.int64)
    weights = np.empty(LONGEST_ROW, np.int64)
    for i in range(max(start, 1), len(text)):
        if not has_room(young, 2, rule.longest):
            return i
        if i >= 2:
            bump(young, old, base, text[i - 2], text[i - 1], text[i], rule.gain, rule, tokens, weights)
        if rule.bigrams:
            bump(young, old, base, NONE, text[i - 1], text[i], rule.gain, rule, tokens, weights)
    return len(text)


@njit(cache=True, nogil=True)
def learn_rows(
    young: Level,
    old: Level,
    base: Frozen,
    contexts: Array,
    ids: Array,
    shares: Array,
    start: int,
    rule: Rule,
) -> int:
    """Learn the target's own distribution: shares Float32[R, k] of ids Int32[R, k] after contexts Int32[R, 2].

    Return where it stopped: R, or earlier if young has no room left.
    """
    tokens = np.empty(LONGEST_ROW, np.int64)
    weights = np.empty(LONGEST_ROW, np.int64)
    for r in range(start, len(contexts)):
        # Two rows, each of which may grow through all sizes of blocks: together they are less than two of the largest.
        if not has_room(young, 4, rule.longest):
            return r
        for i in range(ids.shape[1] - 1, -1, -1):
            gain = np.int64(shares[r, i] * rule.gain)
            if gain > 0:
                bump(young, old, base, contexts[r, 0], contexts[r, 1], ids[r, i], gain, rule, tokens, weights)
                if rule.bigrams:
                    bump(young, old, base, NONE, contexts[r, 1], ids[r, i], gain, rule, tokens, weights)
    return len(contexts)


@njit(cache=True, nogil=True)
def _copy_rows(source: Level, target: Level) -> None:
    tokens = np.empty(LONGEST_ROW, np.int64)
    weights = np.empty(LONGEST_ROW, np.int64)
    for slot in range(len(source.slots)):
        word = source.slots[slot]
        if word != np.uint64(0):
            context = word >> np.uint64(22)
            length = _read(source, slot, tokens, weights)
            _write(target, -1 - _find(target, context), context, length, tokens, weights)


@njit(cache=True, nogil=True)
def export(level: Level, above: Level) -> tuple[Array, Array, Array, Array]:
    """Return a, b, c and weight of every successor held, without the rows that a higher level holds too."""
    n = level.counts[_SUCCESSORS]
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
        if _find(above, context) >= 0:
            continue
        for i in range(_read(level, slot, tokens, weights)):
            a[at] = np.int64(context >> np.uint64(21))
            b[at] = np.int64(context & np.uint64(NONE))
            c[at] = tokens[i]
            weight[at] = weights[i]
            at += 1
    return a[:at], b[:at], c[:at], weight[:at]


class TrigramTable:
    """The three levels, their growth, and their bound. Not safe to share between threads without a lock."""

    def __init__(self, *, rule: Rule, limit: int, base: Frozen) -> None:
        """Start empty above `base`, holding at most `limit` bytes, those of `base` included.

        Raises:
            ValueError: the rule's rows or weights do not fit the table.
        """
        if not (1 <= rule.longest <= LONGEST_ROW and 1 <= rule.ceiling <= WEIGHT_LIMIT):
            raise ValueError(f"rows hold 1 to {LONGEST_ROW} successors of weight 1 to {WEIGHT_LIMIT}, not {rule}")
        self.rule = rule
        self.limit = limit
        self.base = base
        self.young = new_level(64, 64)
        self.old = new_level(1, 0)

    @property
    def nbytes(self) -> int:
        """Bytes held, those of the mapped base included."""
        return level_bytes(self.young) + level_bytes(self.old) + self.base.nbytes

    @property
    def successors(self) -> int:
        """Successors learned (young and old); a row that moved up is counted twice until old is dropped."""
        return int(self.young.counts[_SUCCESSORS] + self.old.counts[_SUCCESSORS])

    def learn(self, text: Array, start: int = 0) -> None:
        """Learn text[start:], Int32[T], with the tokens before as context."""
        while (start := learn(self.young, self.old, self.base, text, start, self.rule)) < len(text):
            self.make_room()

    def learn_rows(self, contexts: Array, ids: Array, shares: Array) -> None:
        """Learn shares Float32[R, k] of the successors ids Int32[R, k] of the contexts Int32[R, 2]."""
        start = 0
        while True:
            start = learn_rows(self.young, self.old, self.base, contexts, ids, shares, start, self.rule)
            if start == len(contexts):
                return
            self.make_room()

    def make_room(self) -> None:
        """Grow young by a quarter where it is full; past half of the limit begin a new one instead."""
        slots, pool = len(self.young.slots), len(self.young.tokens)
        rows, block = 64, 2 << int(_class_of(self.rule.longest))
        if self.young.counts[_USED] + rows > _LOAD * slots:
            slots = slots * 5 // 4 + 2 * rows
        if self.young.counts[_TAIL] + rows * block > pool:
            pool = pool * 5 // 4 + 2 * rows * block
        half = max(0, self.limit - self.base.nbytes) // 2 - level_bytes(new_level(0, 0))
        if slots * _SLOT_BYTES + pool * _BLOCK_BYTES > half and self.young.counts[_USED] > 0:
            self.old = self.young
            slots, pool = 4 * rows, 4 * rows * block
        grown = new_level(slots, pool)
        if self.old is not self.young:
            _copy_rows(self.young, grown)
        self.young = grown
