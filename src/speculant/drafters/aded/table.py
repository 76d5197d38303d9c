"""The adaptive successor table of ADED: for each context (a, b), which tokens followed and how often.

ADED (Liu et al., "Adaptive Draft-Verification for Efficient Large Language Model Decoding", AAAI 2025, arXiv
2407.12021) approximates the target by a sparse matrix of tri-gram weights, which is updated with every committed token.
Here the matrix has three levels, looked up in this order:

    young    rows learned or updated recently (rows.py)
    old      the previous young level; a row that is updated again is copied back to young
    base     a read-only table from a corpus or an earlier run, memory-mapped (frozen.py)

When young reaches half of the byte limit, it becomes old, and the previous old level is dropped: memory is bounded, and
the least recently updated rows go first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from speculant.core.tree import Array
from speculant.drafters.aded.frozen import Frozen, copy_frozen_row
from speculant.drafters.aded.rows import (
    LOAD,
    LONGEST_ROW,
    NONE,
    POOL_BYTES,
    SLOT_BYTES,
    SUCCESSORS,
    TAIL,
    USED,
    WEIGHT_LIMIT,
    TableLevel,
    block_length,
    context_of,
    copy_rows,
    find_row,
    has_room,
    level_bytes,
    new_level,
    read_row,
    write_row,
)

_ROWS = 64  # minimum number of rows that fit after a level has grown


class LearningRule(NamedTuple):
    """How a row learns; weights are in units of 1/64 observation.

    Attributes:
        gain: weight that one observation adds.
        ceiling: maximum weight of a successor.
        memory: maximum total of a row, beyond which all its weights decay; 0 for no decay.
        prior: maximum total that a row from `base` starts with, or the total of each such row if `normalised`.
        longest: maximum number of successors in a row; a new one replaces the lightest.
        bigrams: whether (NONE, b) is learned in addition to (a, b).
        normalised: whether all rows of `base` count the same, however often they were seen.
        base_longest: maximum number of successors that a row from `base` starts with.
    """

    gain: int
    ceiling: int
    memory: int
    prior: int
    longest: int
    bigrams: bool
    normalised: bool = False
    base_longest: int = LONGEST_ROW


@njit(cache=True, nogil=True, inline="always")
def _base_row(base: Frozen, a: int, b: int, rule: LearningRule, tokens: Array, weights: Array) -> int:
    longest = min(rule.longest, rule.base_longest)
    return copy_frozen_row(base, a, b, rule.prior, rule.normalised, longest, tokens, weights)


@njit(cache=True, nogil=True)
def lookup(
    young: TableLevel,
    old: TableLevel,
    base: Frozen,
    a: int,
    b: int,
    rule: LearningRule,
    tokens: Array,
    weights: Array,
) -> int:
    """Copy the row of (a, b) into tokens and weights, heaviest first; return its length, 0 if unknown."""
    context = context_of(a, b)
    slot = find_row(young, context)
    if slot >= 0:
        return read_row(young, slot, tokens, weights)
    slot = find_row(old, context)
    if slot >= 0:
        return read_row(old, slot, tokens, weights)
    return _base_row(base, a, b, rule, tokens, weights)


@njit(cache=True, nogil=True)
def _observe(length: int, c: int, gain: int, rule: LearningRule, tokens: Array, weights: Array) -> int:
    """Add `gain` to successor c of a row and keep the row in order, recent first among equals; return its length."""
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


@njit(cache=True, nogil=True, inline="always")
def _bring_up(
    young: TableLevel,
    old: TableLevel,
    base: Frozen,
    a: int,
    b: int,
    rule: LearningRule,
    tokens: Array,
    weights: Array,
) -> tuple[int, int]:
    """Copy the row of (a, b) from the first level that has it; return its slot in young and its length."""
    context = context_of(a, b)
    slot = find_row(young, context)
    if slot >= 0:
        return slot, read_row(young, slot, tokens, weights)
    below = find_row(old, context)
    if below >= 0:
        return -1 - slot, read_row(old, below, tokens, weights)
    return -1 - slot, _base_row(base, a, b, rule, tokens, weights)


@njit(cache=True, nogil=True)
def _learn_one(
    young: TableLevel,
    old: TableLevel,
    base: Frozen,
    a: int,
    b: int,
    c: int,
    rule: LearningRule,
    tokens: Array,
    weights: Array,
) -> None:
    """Learn that c followed (a, b)."""
    slot, length = _bring_up(young, old, base, a, b, rule, tokens, weights)
    length = _observe(length, c, rule.gain, rule, tokens, weights)
    write_row(young, slot, context_of(a, b), length, tokens, weights)


@njit(cache=True, nogil=True)
def _learn_row(
    young: TableLevel,
    old: TableLevel,
    base: Frozen,
    a: int,
    b: int,
    ids: Array,
    shares: Array,
    rule: LearningRule,
    tokens: Array,
    weights: Array,
) -> None:
    """Learn shares Float32[k] of the successors ids Int32[k] of (a, b), starting with the last one."""
    slot, length = _bring_up(young, old, base, a, b, rule, tokens, weights)
    learned = False
    for i in range(len(ids) - 1, -1, -1):
        gain = np.int64(shares[i] * rule.gain)
        if gain > 0:
            length = _observe(length, ids[i], gain, rule, tokens, weights)
            learned = True
    if learned:
        write_row(young, slot, context_of(a, b), length, tokens, weights)


@njit(cache=True, nogil=True)
def learn(young: TableLevel, old: TableLevel, base: Frozen, text: Array, start: int, rule: LearningRule) -> int:
    """Learn text[start:], with the preceding tokens as context.

    Return where it stopped: len(text), or earlier if young is full.
    """
    tokens = np.empty(LONGEST_ROW, np.int64)
    weights = np.empty(LONGEST_ROW, np.int64)
    for i in range(max(start, 1), len(text)):
        if not has_room(young, 2, rule.longest):
            return i
        if i >= 2:
            _learn_one(young, old, base, np.int64(text[i - 2]), text[i - 1], text[i], rule, tokens, weights)
        if rule.bigrams:
            _learn_one(young, old, base, np.int64(NONE), text[i - 1], text[i], rule, tokens, weights)
    return len(text)


@njit(cache=True, nogil=True)
def learn_rows(
    young: TableLevel,
    old: TableLevel,
    base: Frozen,
    contexts: Array,
    ids: Array,
    shares: Array,
    start: int,
    rule: LearningRule,
) -> int:
    """Learn the target's own distribution: shares Float32[R, k] of ids Int32[R, k] after contexts Int32[R, 2].

    Return where it stopped: R, or earlier if young is full.
    """
    tokens = np.empty(LONGEST_ROW, np.int64)
    weights = np.empty(LONGEST_ROW, np.int64)
    for r in range(start, len(contexts)):
        if not has_room(young, 2, rule.longest):
            return r
        a, b = contexts[r]
        _learn_row(young, old, base, np.int64(a), b, ids[r], shares[r], rule, tokens, weights)
        if rule.bigrams:
            _learn_row(young, old, base, np.int64(NONE), b, ids[r], shares[r], rule, tokens, weights)
    return len(contexts)


@njit(cache=True, nogil=True)
def learn_round(
    young: TableLevel,
    old: TableLevel,
    base: Frozen,
    text: Array,
    nodes: Array,
    parents: Array,
    ids: Array,
    logits: Array,
    strength: float,
    start: int,
    rule: LearningRule,
) -> int:
    """Learn the target's distributions at the root and the N nodes of a round, then its committed tokens.

    Args:
        young, old, base, rule: levels and learning rule of the table.
        text: Int32[2 + T], the last two tokens before the round, of which the second is the root, and T committed ones.
        nodes, parents: Int32[N], tokens and parents of the draft.
        ids, logits: [N + 1, k], the target's top tokens after the root and each node, best first.
        strength: number of observations that such a distribution counts as.
        start: number of rows and tokens that were learned before.

    Return where it stopped: N + 1 + T, or earlier if young is full.
    """
    # 1. The last two tokens at each row.
    rows = len(nodes) + 1
    contexts = np.empty((rows, 2), np.int32)
    contexts[0] = text[:2]
    for node in range(rows - 1):
        contexts[node + 1, 0] = text[1] if parents[node] < 0 else nodes[parents[node]]
        contexts[node + 1, 1] = nodes[node]

    # 2. The probabilities of the top tokens among each other.
    shares = np.empty((rows, ids.shape[1]), np.float32)
    for r in range(rows):
        total = np.float32(0)
        for i in range(ids.shape[1]):
            shares[r, i] = np.exp(logits[r, i] - logits[r, 0])
            total += shares[r, i]
        shares[r] *= np.float32(strength) / total

    # 3. Rows first: the token that was committed counts as the most recent successor.
    if start < rows:
        start = learn_rows(young, old, base, contexts, ids, shares, start, rule)
        if start < rows:
            return start
    return rows - 2 + learn(young, old, base, text, 2 + start - rows, rule)


class TrigramTable:
    """The three levels, which grow up to a limit. Not safe to share between threads without a lock."""

    def __init__(self, *, rule: LearningRule, limit: int, base: Frozen) -> None:
        """Start with empty levels above `base`, using at most `limit` bytes including `base`.

        Raises:
            ValueError: the rule's maximum row length or weight does not fit the table.
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
        """Current size in bytes, including the mapped base."""
        return level_bytes(self.young) + level_bytes(self.old) + self.base.nbytes

    @property
    def successors(self) -> int:
        """Number of successors learned (young and old); a row in both levels is counted twice."""
        return int(self.young.counts[SUCCESSORS] + self.old.counts[SUCCESSORS])

    def learn(self, text: Array, start: int = 0) -> None:
        """Learn text[start:], Int32[T], with the preceding tokens as context."""
        while (start := learn(self.young, self.old, self.base, text, start, self.rule)) < len(text):
            self.make_room()

    def learn_round(
        self, text: Array, nodes: Array, parents: Array, ids: Array, logits: Array, strength: float
    ) -> None:
        """Learn a round, see the function of this name."""
        ids, logits, start = np.ascontiguousarray(ids), np.ascontiguousarray(logits), 0
        while True:
            start = learn_round(
                self.young, self.old, self.base, text, nodes, parents, ids, logits, strength, start, self.rule
            )
            if start == len(nodes) + len(text) - 1:
                return
            self.make_room()

    def make_room(self) -> None:
        """Grow young by a quarter if it is full; beyond half of the limit, start a new one instead.

        Growing needs memory for a copy, which is available as long as there is no old level; after that, each level is
        allocated at its full size.
        """
        young, block = self.young, int(block_length(self.rule.longest))
        slots, pool = len(young.slots), len(young.tokens)
        if young.counts[USED] + _ROWS > LOAD * slots:
            slots = slots * 5 // 4 + 2 * _ROWS
        if young.counts[TAIL] + _ROWS * block > pool:
            pool = pool * 5 // 4 + 2 * _ROWS * block
        half = max(0, self.limit - self.base.nbytes) // 2 - level_bytes(new_level(0, 0))
        if slots * SLOT_BYTES + pool * POOL_BYTES <= half or not young.counts[USED]:
            self.young = new_level(slots, pool)
            copy_rows(young, self.young)
        else:
            self.old, self.young = young, new_level(*_divide(half, young, 4 * _ROWS, 4 * _ROWS * block))


def _divide(size: int, like: TableLevel, min_slots: int, min_pool: int) -> tuple[int, int]:
    """Return the slots and the pool that together take `size` bytes, in the proportions of the full level `like`."""
    slot_bytes = int(like.counts[USED]) * SLOT_BYTES / LOAD
    share = slot_bytes / (slot_bytes + int(like.counts[TAIL]) * POOL_BYTES)
    slots = max(min_slots, min(int(size * share), size - min_pool * POOL_BYTES) // SLOT_BYTES)
    return slots, max(min_pool, (size - slots * SLOT_BYTES) // POOL_BYTES)
