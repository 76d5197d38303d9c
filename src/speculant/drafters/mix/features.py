"""Features of the next token: the candidates that rows of contexts name, and each candidate's state for each input.

The state bins the candidate's share of the row's weight, the row's total weight, and whether the candidate was seen
last; mixer.py learns how often candidates in each state are accepted. A candidate is named by only two or three of the
thirteen inputs, so only those are listed: for every other input it is in the state shared by all candidates that the
input does not name.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from speculant.core.tree import Array
from speculant.drafters.mix.arrays import (
    ABSENT,
    BASE_CONTEXTS,
    CACHE,
    CACHE_UNIT,
    COPY,
    DISTANCES,
    FREQUENCIES,
    INPUTS,
    LEVEL_BITS,
    LEVELS,
    LINE,
    LOCAL,
    LONGEST_ROW,
    MAX_CANDIDATES,
    RECENCY,
    SETS,
    SHARES,
    TOTALS,
    UNKNOWN,
    Bases,
    Mixer,
    Scratch,
    has_scores,
)
from speculant.drafters.mix.cells import UNIT, Cells, look_up
from speculant.drafters.mix.contexts import ORDERS, TARGET_TWO, WIDE
from speculant.drafters.mix.history import History, followers
from speculant.drafters.mix.repetition import LENGTHS, NOWHERE, length_band


@njit(cache=True, nogil=True, inline="always")
def _total_band(total: int, unit: int) -> int:
    doubled = 2 * total
    if doubled < 7 * unit:
        return 0 if doubled < 3 * unit else 1 if doubled < 5 * unit else 2
    return 3 if total < 5 * unit else 4 if total < 7 * unit else 5 if total < 10 * unit else 6


@njit(cache=True, nogil=True, inline="always")
def share_band(share: float) -> int:
    """Return the bin of a share of a row's weight: sixteenths below a quarter, then twelfths, and one bin for 1."""
    if share > np.float32(0.999):
        return SHARES - 1
    share += np.float32(1e-4)  # a boundary belongs to the bin above it, regardless of rounding
    if share < np.float32(0.25):
        return np.int64(share * np.float32(16))
    return min(SHARES - 2, np.int64(share * np.float32(12)) + 1)


@njit(cache=True, nogil=True, inline="always")
def log_band(value: int, maximum: int) -> int:
    """Return the binary logarithm of `value`, rounded down, at most `maximum`."""
    band = 0
    if value >= 256:
        value >>= 8
        band = 8
    while value >= 2 and band < maximum:
        value >>= 1
        band += 1
    return min(maximum, band)


@njit(cache=True, nogil=True, inline="always")
def _candidate(token: int, count: int, features: Scratch) -> int:
    """Return the candidate's index, which is `count` if it is new, or -1 if there is no room for it."""
    at = token & 255
    while features.buckets[at] >= 0:
        if features.candidates[features.buckets[at]] == token:
            return np.int64(features.buckets[at])
        at = (at + 1) & 255
    if count == MAX_CANDIDATES:
        return -1
    features.buckets[at] = count
    features.candidates[count] = token
    return count


@njit(cache=True, nogil=True)
def _gather_base(
    lines: Array, bits: int, first: int, hashes: Array, vocabulary: int, maximum: int, count: int, at: int,
    features: Scratch,
) -> tuple[int, int]:  # fmt: skip
    """Collect the candidates a base names, as inputs from `first` on; return the new counts of candidates and names."""
    level_shift, check_shift = np.uint32(bits), np.uint32(bits + LEVEL_BITS)
    token_mask, check_mask = np.uint32((1 << bits) - 1), np.uint64((1 << (32 - LEVEL_BITS - bits)) - 1)
    # Touch all lines before searching any, so that the processor waits for memory once instead of four times.
    touched = np.uint32(0)
    for i in range(BASE_CONTEXTS):
        line = -1
        if hashes[i] != np.uint64(0):
            line = np.int64(((hashes[i] >> np.uint64(32)) * np.uint64(len(lines))) >> np.uint64(32))
            touched |= lines[line, 0]
        features.lines[i] = line
    if touched == np.uint32(0):
        for i in range(BASE_CONTEXTS):
            features.absent[first + i], features.ends[first + i] = UNKNOWN, at
        return count, at
    for i in range(BASE_CONTEXTS):
        features.absent[first + i] = UNKNOWN
        line, found = features.lines[i], 0
        check = np.uint32(hashes[i] & check_mask)
        if line >= 0:
            for k in range(LINE):
                entry = lines[line, k]
                if entry >> check_shift != check or entry == np.uint32(0):
                    continue
                token = np.int64(entry & token_mask)
                level = np.int64((entry >> level_shift) & np.uint32(LEVELS - 1))
                if found == 0:
                    features.absent[first + i] = ABSENT + level * TOTALS // LEVELS
                    features.chosen[1] = max(features.chosen[1], i + 1)
                c = _candidate(token, count, features) if token < vocabulary else -1
                if c >= 0:
                    count = max(count, c + 1)
                    features.named[0, at], features.named[1, at] = c, level * 2 + (1 if found == 0 else 0)
                    at += 1
                found += 1
                if found == maximum:
                    break
        features.ends[first + i] = at
    return count, at


@njit(cache=True, nogil=True)
def gather(
    narrow: Cells, wide: Cells, mixer: Mixer, bases: Bases, hashes: Array, copied: int, copied_length: int,
    history: History, last: int, now: int, maximum: int, features: Scratch,
) -> int:  # fmt: skip
    """Collect the candidates that inputs name, with each one's state for each input; return their number.

    Args:
        narrow, wide, mixer, bases: tables, mixture and bases of the drafter.
        hashes: UInt64[CONTEXTS], see `hash_contexts`.
        copied: token that followed the repetition, or NOWHERE.
        copied_length: length of the repetition in tokens.
        history: text of this request.
        last: token before the one to be predicted; NEVER at the start.
        now: position of the token to be predicted.
        maximum: maximum number of entries in a row that become candidates. A constant is passed as np.int64: numba
            would compile a literal as a type of its own.
        features: scratch space to write to.
    """
    features.buckets[:] = -1
    count, at, weight_set = 0, 0, 0
    # 1. Read the row of every input that names successors.
    for i in range(COPY):
        length = 0
        if i == CACHE:
            while length < LONGEST_ROW and mixer.cache[1, length] > 0:
                features.tokens[i, length], features.weights[i, length] = mixer.cache[0, length], mixer.cache[1, length]
                length += 1
        elif i == LOCAL:
            length = followers(history, last, UNIT, features.tokens, features.weights, i)
        elif hashes[i] != np.uint64(0):
            length = look_up(wide if WIDE[i] else narrow, hashes[i], features.tokens, features.weights, i)
        features.lengths[i] = length
    # 2. Make candidates of their entries; the state is the share of the row, the row's total, and whether it is first.
    for i in range(COPY):
        length, total = features.lengths[i], 0
        features.absent[i] = UNKNOWN
        if length > 0:
            for k in range(length):
                total += features.weights[i, k]
            if i < ORDERS:
                weight_set = i + 1
            band = _total_band(total, CACHE_UNIT if i == CACHE else UNIT)
            features.absent[i] = ABSENT + band
            whole = np.float32(1) / np.float32(total)
            for k in range(min(length, maximum)):
                c = _candidate(features.tokens[i, k], count, features)
                if c >= 0:
                    count = max(count, c + 1)
                    share = share_band(np.float32(features.weights[i, k]) * whole)
                    features.named[0, at] = c
                    features.named[1, at] = (share * TOTALS + band) * 2 + (1 if k == 0 else 0)
                    at += 1
        features.ends[i] = at
    # 3. Make the token that followed the repetition a candidate of the input COPY.
    features.absent[COPY] = UNKNOWN
    if copied != NOWHERE:
        if copied_length >= 6:
            weight_set = ORDERS + 1 + (copied_length >= 16)
        features.absent[COPY] = LENGTHS + length_band(copied_length)
        c = _candidate(copied, count, features)
        if c >= 0:
            count = max(count, c + 1)
            features.named[0, at], features.named[1, at] = c, length_band(copied_length)
            at += 1
    features.ends[COPY] = at
    features.absent[RECENCY], features.ends[RECENCY] = UNKNOWN, at
    # 4. Add the candidates of frozen bases.
    features.chosen[1] = 0
    for b in range((len(features.absent) - INPUTS) // BASE_CONTEXTS):
        lines = bases.first if b == 0 else (bases.second if b == 1 else bases.third)
        first, vocabulary = INPUTS + b * BASE_CONTEXTS, len(mixer.bands)
        count, at = _gather_base(lines, bases.bits[b], first, hashes, vocabulary, maximum, count, at, features)
    if has_scores(len(features.absent)):
        features.absent[-1], features.ends[-1] = UNKNOWN, at
    # 5. Recency and frequency describe every candidate, whichever input named it.
    for c in range(count):
        token = features.candidates[c]
        use = np.int64(history.last_use[token])
        distance = log_band(now - use, DISTANCES - 2) if use >= 0 else DISTANCES - 1
        features.bands[c] = mixer.bands[token]
        features.recency[c] = distance * FREQUENCIES + features.bands[c]
    # 6. Select the set of weights by the longest known context.
    if features.absent[TARGET_TWO] != UNKNOWN:
        weight_set += SETS // 2
    features.chosen[0] = weight_set
    return count
