"""What the contexts say of the next token: the candidates that their rows name, and the state of each for each input.

What a row says of a candidate, its share, the row's weight and whether it came last, is a state; how often candidates
in a state come true is learned elsewhere (mixing.py). A candidate is named by two or three inputs of twelve, so only
those are noted: for all the others it is in the state that every candidate shares which the input does not name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from speculant.drafters.mix.cells import UNIT, Cells, look_up
from speculant.drafters.mix.contexts import CONTEXTS, ECHO_TWO, ORDERS, WIDE
from speculant.drafters.mix.repetition import LENGTHS, NOWHERE, length_band

if TYPE_CHECKING:
    from speculant.drafters.mix.mixer import Mixer

Array = npt.NDArray[Any]

# Inputs that are no context's row: late tokens overall, the request's own repetition, a token's last use.
CACHE, COPY, RECENCY = CONTEXTS, CONTEXTS + 1, CONTEXTS + 2
INPUTS = CONTEXTS + 3
MOST_CANDIDATES = 128
LONGEST_ROW = 24
CACHE_UNIT = 1 << 20

SHARES, TOTALS = 14, 7
ABSENT = SHARES * TOTALS * 2
UNKNOWN = ABSENT + TOTALS  # the state of a context without a row: its logit is 0 and stays so
STATES = UNKNOWN + 1
DISTANCES, FREQUENCIES = 12, 10
SETS = 2 * (ORDERS + 3)  # by the longest known suffix, or a repetition of six tokens, or of sixteen; and by echoes


class Evidence(NamedTuple):
    """Room for what is said of one next token: C candidates, named E times.

    Attributes:
        candidates: Int64[C], tokens. bands: Int64[C], how frequent each is, in powers of two.
        recency: Int64[C], the state of each by its last use.
        named: Int64[2, E], candidate and state, input by input.
        ends: Int64[COPY + 1], where each input's part of `named` ends.
        absent: Int64[I], the state of candidates that an input does not name.
        buckets: Int16[256], the candidates by the last bits of their ids, as an open hash table.
        tokens, weights: Int64[COPY, 24], the rows. lengths: Int64[COPY], of the rows.
        facts: Int64[1], the set of mixing weights.
        sums: Float32[FREQUENCIES, I + 1], mixing weights of both kinds, and the logit of one that no input names.
        logits, errors: Float32[C], counts: Int64[C], of the mixture.
    """

    candidates: Array
    bands: Array
    recency: Array
    named: Array
    ends: Array
    absent: Array
    buckets: Array
    tokens: Array
    weights: Array
    lengths: Array
    facts: Array
    sums: Array
    logits: Array
    errors: Array
    counts: Array


@njit(cache=True, nogil=True)
def new_evidence() -> Evidence:
    """Return the room."""
    return Evidence(
        np.empty(MOST_CANDIDATES, np.int64),
        np.empty(MOST_CANDIDATES, np.int64),
        np.empty(MOST_CANDIDATES, np.int64),
        np.empty((2, COPY * LONGEST_ROW + 1), np.int64),
        np.empty(COPY + 1, np.int64),
        np.empty(INPUTS, np.int64),
        np.empty(256, np.int16),
        np.empty((COPY, LONGEST_ROW), np.int64),
        np.empty((COPY, LONGEST_ROW), np.int64),
        np.empty(COPY, np.int64),
        np.empty(1, np.int64),
        np.empty((FREQUENCIES, INPUTS + 1), np.float32),
        np.empty(MOST_CANDIDATES, np.float32),
        np.empty(MOST_CANDIDATES, np.float32),
        np.empty(MOST_CANDIDATES, np.int64),
    )


@njit(cache=True, nogil=True, inline="always")
def _total_band(total: int, unit: int) -> int:
    doubled = 2 * total
    if doubled < 7 * unit:
        return 0 if doubled < 3 * unit else 1 if doubled < 5 * unit else 2
    return 3 if total < 5 * unit else 4 if total < 7 * unit else 5 if total < 10 * unit else 6


@njit(cache=True, nogil=True, inline="always")
def share_band(share: float) -> int:
    """Return one of SHARES bands of a share of a row's weight: sixteenths, above a quarter twelfths, and all of it."""
    if share > np.float32(0.999):
        return SHARES - 1
    share += np.float32(1e-4)  # the border belongs to the band above it, however the share was rounded
    if share < np.float32(0.25):
        return np.int64(share * np.float32(16))
    return min(SHARES - 2, np.int64(share * np.float32(12)) + 1)


@njit(cache=True, nogil=True, inline="always")
def log_band(value: int, most: int) -> int:
    """Return the binary logarithm, at the most `most`."""
    band = 0
    if value >= 256:
        value >>= 8
        band = 8
    while value >= 2 and band < most:
        value >>= 1
        band += 1
    return min(most, band)


@njit(cache=True, nogil=True, inline="always")
def _candidate(token: int, count: int, evidence: Evidence) -> int:
    """Return the candidate's place, which is `count` if it is new, or -1 if there is no room for it."""
    at = token & 255
    while evidence.buckets[at] >= 0:
        if evidence.candidates[evidence.buckets[at]] == token:
            return np.int64(evidence.buckets[at])
        at = (at + 1) & 255
    if count == MOST_CANDIDATES:
        return -1
    evidence.buckets[at] = count
    evidence.candidates[count] = token
    return count


@njit(cache=True, nogil=True)
def gather(
    narrow: Cells, wide: Cells, mixer: Mixer, hashes: Array, copied: int, copied_length: int, last_use: Array,
    now: int, most: int, evidence: Evidence,
) -> int:  # fmt: skip
    """Collect what every context's row names, and the state of each for each input; return how many there are.

    `copied` is the token that followed the repetition of `copied_length` tokens, or NOWHERE.
    `last_use` is Int32[V], where in this request each token was last used, -1 if nowhere; `now` is the place of the
    token to be predicted. Of each row at most `most` entries become candidates.
    """
    evidence.buckets[:] = -1
    count, at, weight_set = 0, 0, 0
    for i in range(COPY):
        length = 0
        if i == CACHE:
            while length < LONGEST_ROW and mixer.cache[1, length] > 0:
                evidence.tokens[i, length], evidence.weights[i, length] = mixer.cache[0, length], mixer.cache[1, length]
                length += 1
        elif hashes[i] != np.uint64(0):
            length = look_up(wide if WIDE[i] else narrow, hashes[i], evidence.tokens, evidence.weights, i)
        evidence.lengths[i] = length
    for i in range(COPY):
        length, total = evidence.lengths[i], 0
        evidence.absent[i] = UNKNOWN
        if length > 0:
            for k in range(length):
                total += evidence.weights[i, k]
            if i < ORDERS:
                weight_set = i + 1
            band = _total_band(total, CACHE_UNIT if i == CACHE else UNIT)
            evidence.absent[i] = ABSENT + band
            whole = np.float32(1) / np.float32(total)
            for k in range(min(length, most)):
                c = _candidate(evidence.tokens[i, k], count, evidence)
                if c >= 0:
                    count = max(count, c + 1)
                    share = share_band(np.float32(evidence.weights[i, k]) * whole)
                    evidence.named[0, at] = c
                    evidence.named[1, at] = (share * TOTALS + band) * 2 + (1 if k == 0 else 0)
                    at += 1
        evidence.ends[i] = at
    evidence.absent[COPY] = UNKNOWN
    if copied != NOWHERE:
        if copied_length >= 6:
            weight_set = ORDERS + 1 + (copied_length >= 16)
        evidence.absent[COPY] = LENGTHS + length_band(copied_length)
        c = _candidate(copied, count, evidence)
        if c >= 0:
            count = max(count, c + 1)
            evidence.named[0, at], evidence.named[1, at] = c, length_band(copied_length)
            at += 1
    evidence.ends[COPY] = at
    evidence.absent[RECENCY] = UNKNOWN
    for c in range(count):
        token = evidence.candidates[c]
        use = np.int64(last_use[token])
        distance = log_band(now - use, DISTANCES - 2) if use >= 0 else DISTANCES - 1
        evidence.bands[c] = mixer.bands[token]
        evidence.recency[c] = distance * FREQUENCIES + evidence.bands[c]
    if evidence.absent[ECHO_TWO] != UNKNOWN:
        weight_set += SETS // 2
    evidence.facts[0] = weight_set
    return count
