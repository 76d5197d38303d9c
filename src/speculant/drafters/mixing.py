"""Probabilities learned online: what each context's evidence has been worth, mixed by logistic regression.

A candidate is a token that some context's row names. What a row says of it, its share, the row's weight and whether
it came last, is a state, and the rate at which candidates in that state came true is learned, so that no count has
to be trusted by formula (indirect modelling, as in the PAQ compressors: Mahoney 2005). The logits of these rates are
added with learned weights: p = 1 / (1 + exp(-sum_i w_i ln(p_i / (1 - p_i)))), and after each token the weights move
by the error times the input, the gradient of the coding cost. Weights are chosen by the longest known suffix and by
how frequent the candidate is; they are summed. Each candidate is a binary event, so the mix is calibrated by
construction and need not sum to one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from speculant.drafters.cells import UNIT, Cells, find, read
from speculant.drafters.contexts import CONTEXTS, ECHO_ONE, ECHO_TWO, ORDERS, WIDE
from speculant.drafters.copying import LENGTHS, NOWHERE, length_band

Array = npt.NDArray[Any]

# Inputs that are no context's row: late tokens overall, the request's own repetition, a token's last use.
CACHE, COPY, RECENCY = CONTEXTS, CONTEXTS + 1, CONTEXTS + 2
INPUTS = CONTEXTS + 3
MOST_CANDIDATES = 128
LONGEST_ROW = 24

_SHARES, _TOTALS = 14, 7
_ABSENT = _SHARES * _TOTALS * 2
_UNKNOWN = _ABSENT + _TOTALS  # the state of a context without a row: its logit is 0 and stays so
STATES = _UNKNOWN + 1
_DISTANCES, FREQUENCIES = 12, 10
_SETS = 2 * (ORDERS + 3)  # by the longest known suffix, or a repetition of six tokens, or of sixteen; and by echoes
# First mixing weights, an input a column: suffixes of 1, 2, 3, 4, 6, skip, skeleton, echoes, cache, copy, last use.
# A line for no known suffix, one for each length, two for repetitions; then the same where the target's own best
# tokens are known.
_TRUST = (
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.2, 0.15, 0.3, 0.0, 0.4, 0.1, 0.4),
    (0.7, 0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.0, 0.0, 0.1, 0.4),
    (0.5, 0.4, 0.0, 0.0, 0.0, 0.1, 0.1, 0.1, 0.0, -0.2, 0.1, 0.35),
    (0.4, 0.3, 0.25, 0.0, 0.0, 0.05, 0.1, 0.1, 0.0, -0.2, 0.1, 0.25),
    (0.35, 0.25, 0.2, 0.2, 0.0, 0.05, 0.05, 0.1, 0.0, -0.1, 0.1, 0.1),
    (0.25, 0.15, 0.15, 0.15, 0.15, 0.0, 0.1, 0.1, 0.0, 0.0, 0.1, 0.05),
    (0.3, 0.25, 0.05, 0.0, 0.0, 0.0, 0.1, 0.1, 0.0, -0.1, 0.45, 0.05),
    (0.2, 0.2, 0.1, 0.05, 0.1, 0.0, 0.1, 0.1, 0.0, -0.1, 0.45, 0.0),
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.8, 0.2, 0.1, 0.2),
    (0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.4, 0.3, 0.0, 0.1, 0.1),
    (0.0, 0.8, 0.0, 0.0, 0.0, 0.0, 0.3, 0.2, 0.4, -0.3, 0.1, 0.0),
    (0.0, 0.4, 0.4, 0.0, 0.0, 0.0, 0.4, 0.1, 0.3, -0.3, 0.1, 0.0),
    (0.0, 0.2, 0.4, 0.1, 0.0, 0.0, 0.4, 0.1, 0.3, -0.2, 0.0, 0.0),
    (0.1, 0.1, 0.1, 0.1, 0.4, 0.0, 0.2, 0.1, 0.3, -0.1, 0.0, 0.0),
    (0.1, 0.1, 0.0, 0.0, 0.0, 0.0, 0.2, 0.2, 0.3, -0.1, 0.2, 0.0),
    (0.1, 0.1, 0.1, 0.0, 0.1, 0.0, 0.1, 0.2, 0.3, -0.1, 0.3, 0.0),
)
_LAST_USE = (0.001, 0.01, 0.03, 0.06, 0.06, 0.06, 0.03, 0.02, 0.015, 0.015, 0.01, 0.005)  # rates by distance
_RATE, _SLOWEST = 1.5, 0.003
_STEP, _STEP_TOKENS, _SMALLEST_STEP = 0.01, 1000.0, 0.0005
_BIAS_STEP = 0.3
_QUIET, _SAMPLE = -3.5, 8
_CACHE_MEMORY = 200
_CACHE_UNIT = 1 << 20
_CLAMP = 12.0
_SQUASH_STEPS = 128
_TABLE = 2 * 12 * _SQUASH_STEPS + 2


class Mixer(NamedTuple):
    """What is learned beside the rows.

    Attributes:
        weights: Float32[S, I + 1], mixing weights, first the sets by suffix, then those by frequency; the last of
            each is a bias.
        evidence: Float32[3, I, STATES], how often candidates in a state came true, its logit, and how many there were.
        frequency: Int64[V + 1], how often each token was seen, and all of them last.
        cache: Int64[2, 24], tokens of late and their decayed counts, heaviest first.
        steps: Float64[1], tokens learned from.
        tables: Float32[2, K], the logistic function and the paces of learning, so that they are the same everywhere.
    """

    weights: Array
    evidence: Array
    frequency: Array
    cache: Array
    steps: Array
    tables: Array


def new_mixer(vocabulary: int) -> Mixer:
    """Return a mixer that begins with plausible guesses: rough figures of what it has learned elsewhere."""
    totals = np.array([1.0, 2, 3, 4, 6, 8, 14])
    share = np.arange(_SHARES)
    shares = np.where(share < 4, (share + 0.5) / 16, 0.25 + (share - 3.5) / 12)
    shares[-1] = 1
    named = np.clip(0.9 * np.outer(shares, totals / (totals + 1)), 0.01, 0.95)
    rates = np.empty((INPUTS, STATES))
    rates[:, :_ABSENT] = np.stack([0.7 * named, named], axis=-1).ravel()
    rates[ECHO_ONE : ECHO_TWO + 1, :_ABSENT] = np.repeat(np.clip(shares, 0.01, 0.95), 2 * _TOTALS)
    rates[:, _ABSENT:_UNKNOWN] = 0.01
    rates[COPY, :LENGTHS] = 1 - 0.45 * 0.77 ** np.arange(LENGTHS)
    rates[COPY, LENGTHS : 2 * LENGTHS] = 0.01
    rates[RECENCY, : _DISTANCES * FREQUENCIES] = np.repeat(_LAST_USE, FREQUENCIES)
    rates[:, _UNKNOWN] = 0.5
    weights = np.zeros((_SETS + FREQUENCIES, INPUTS + 1), np.float32)
    weights[:_SETS, :INPUTS] = _TRUST
    steps = np.arange(_TABLE)
    squash = 1 / (1 + np.exp(_CLAMP - steps / _SQUASH_STEPS))
    paces = np.maximum(1 / (np.maximum(steps, 1) + _RATE), _SLOWEST)
    return Mixer(
        weights=weights,
        evidence=np.stack([rates, np.log(rates / (1 - rates)), np.zeros_like(rates)]).astype(np.float32),
        frequency=np.zeros(vocabulary + 1, np.int64),
        cache=np.zeros((2, LONGEST_ROW), np.int64),
        steps=np.zeros(1),
        tables=np.stack([squash, paces]).astype(np.float32),
    )


class Scratch(NamedTuple):
    """Room for one context's candidates.

    Attributes:
        candidates: Int64[C]. states: Int16[I, C]. bands: Int64[C], how frequent each is, in powers of two.
        buckets: Int16[256], the candidates by the last bits of their ids, as an open hash table.
        tokens, weights: Int64[24], one row.
        absent: Int64[I], the state of candidates that an input does not name.
        facts: Int64[1], the set of mixing weights.
        logits, errors: Float32[C], counts: Int64[C], shared: Float32[FREQUENCIES], of the mixture.
    """

    candidates: Array
    states: Array
    bands: Array
    buckets: Array
    tokens: Array
    weights: Array
    absent: Array
    facts: Array
    logits: Array
    errors: Array
    counts: Array
    shared: Array


@njit(cache=True, nogil=True)
def new_scratch() -> Scratch:
    """Return the room."""
    return Scratch(
        np.empty(MOST_CANDIDATES, np.int64),
        np.empty((INPUTS, MOST_CANDIDATES), np.int16),
        np.empty(MOST_CANDIDATES, np.int64),
        np.empty(256, np.int16),
        np.empty(LONGEST_ROW, np.int64),
        np.empty(LONGEST_ROW, np.int64),
        np.empty(INPUTS, np.int64),
        np.empty(1, np.int64),
        np.empty(MOST_CANDIDATES, np.float32),
        np.empty(MOST_CANDIDATES, np.float32),
        np.empty(MOST_CANDIDATES, np.int64),
        np.empty(FREQUENCIES, np.float32),
    )


@njit(cache=True, nogil=True, inline="always")
def _total_band(total: int, unit: int) -> int:
    doubled = 2 * total
    if doubled < 7 * unit:
        return 0 if doubled < 3 * unit else 1 if doubled < 5 * unit else 2
    return 3 if total < 5 * unit else 4 if total < 7 * unit else 5 if total < 10 * unit else 6


@njit(cache=True, nogil=True, inline="always")
def _state(weight: int, total: int, band: int, latest: bool) -> int:
    if 1000 * weight > 999 * total:
        share = _SHARES - 1
    elif 4 * weight < total:
        share = 16 * weight // total
    else:
        share = min(_SHARES - 2, 4 + 3 * (4 * weight - total) // total)
    return (share * _TOTALS + band) * 2 + (1 if latest else 0)


@njit(cache=True, nogil=True, inline="always")
def _log_band(value: int, most: int) -> int:
    band = 0
    if value >= 256:
        value >>= 8
        band = 8
    while value >= 2 and band < most:
        value >>= 1
        band += 1
    return min(most, band)


@njit(cache=True, nogil=True, inline="always")
def _candidate(token: int, count: int, scratch: Scratch) -> int:
    """Return the candidate's place, which is `count` if it is new, or -1 if there is no room for it."""
    at = token & 255
    while scratch.buckets[at] >= 0:
        if scratch.candidates[scratch.buckets[at]] == token:
            return np.int64(scratch.buckets[at])
        at = (at + 1) & 255
    if count == MOST_CANDIDATES:
        return -1
    scratch.buckets[at] = count
    scratch.candidates[count] = token
    return count


@njit(cache=True, nogil=True)
def gather(
    narrow: Cells, wide: Cells, mixer: Mixer, hashes: Array, copied: int, copied_length: int, last_use: Array,
    now: int, most: int, scratch: Scratch,
) -> int:  # fmt: skip
    """Collect what every context's row names and the state of each for each input; return how many there are.

    `copied` is the token that followed the repetition of `copied_length` tokens, or NOWHERE.
    `last_use` is Int32[V], where in this request each token was last used, -1 if nowhere; `now` is the place of the
    token to be predicted. Of each row at most `most` entries become candidates.
    """
    scratch.buckets[:] = -1
    count, weight_set = 0, 0
    tokens, weights = scratch.tokens, scratch.weights
    for i in range(COPY):
        length, total = 0, 0
        if i == CACHE:
            while length < LONGEST_ROW and mixer.cache[1, length] > 0:
                tokens[length], weights[length] = mixer.cache[0, length], mixer.cache[1, length]
                length += 1
        elif hashes[i] != np.uint64(0):
            cells = wide if WIDE[i] else narrow
            cell = find(cells, hashes[i])
            if cell >= 0:
                length = read(cells, cell, tokens, weights)
        if length == 0:
            scratch.absent[i] = _UNKNOWN
            scratch.states[i] = _UNKNOWN
            continue
        for k in range(length):
            total += weights[k]
        if i < ORDERS:
            weight_set = i + 1
        band = _total_band(total, _CACHE_UNIT if i == CACHE else UNIT)
        scratch.absent[i] = _ABSENT + band
        scratch.states[i] = _ABSENT + band
        for k in range(min(length, most)):
            c = _candidate(tokens[k], count, scratch)
            if c >= 0:
                count = max(count, c + 1)
                scratch.states[i, c] = _state(weights[k], total, band, k == 0)
    scratch.absent[COPY] = _UNKNOWN
    if copied != NOWHERE:
        if copied_length >= 6:
            weight_set = ORDERS + 1 + (copied_length >= 16)
        scratch.absent[COPY] = LENGTHS + length_band(copied_length)
    scratch.states[COPY] = scratch.absent[COPY]
    if copied != NOWHERE:
        c = _candidate(copied, count, scratch)
        if c >= 0:
            count = max(count, c + 1)
            scratch.states[COPY, c] = length_band(copied_length)
    scratch.absent[RECENCY] = _UNKNOWN
    for c in range(count):
        token = scratch.candidates[c]
        use = np.int64(last_use[token])
        distance = _log_band(now - use, _DISTANCES - 2) if use >= 0 else _DISTANCES - 1
        scratch.bands[c] = _log_band(mixer.frequency[token], FREQUENCIES - 1)
        scratch.states[RECENCY, c] = distance * FREQUENCIES + scratch.bands[c]
    if scratch.absent[ECHO_TWO] != _UNKNOWN:
        weight_set += _SETS // 2
    scratch.facts[0] = weight_set
    by_suffix, logits = mixer.weights[weight_set], mixer.evidence[1]
    for c in range(count):
        by_frequency = mixer.weights[_SETS + scratch.bands[c]]
        z = by_suffix[INPUTS] + by_frequency[INPUTS]
        for i in range(INPUTS):
            z += (by_suffix[i] + by_frequency[i]) * logits[i, scratch.states[i, c]]
        scratch.logits[c] = min(max(z, np.float32(-_CLAMP)), np.float32(_CLAMP))
    return count


@njit(cache=True, nogil=True, inline="always")
def squash(mixer: Mixer, z: float) -> float:
    """Return 1 / (1 + exp(-z)) by interpolation, the same on every machine."""
    at = (z + np.float32(_CLAMP)) * np.float32(_SQUASH_STEPS)
    i = np.int64(at)
    left = mixer.tables[0, i]
    return left + (at - np.float32(i)) * (mixer.tables[0, i + 1] - left)


@njit(cache=True, nogil=True, inline="always")
def _move_rate(mixer: Mixer, i: int, state: int, count: int, hits: int) -> None:
    """Learn that `hits` of `count` candidates in a state came true."""
    rates, logits, seen = mixer.evidence[0, i], mixer.evidence[1, i], mixer.evidence[2, i]
    met = min(seen[state] + np.float32(count), np.float32(_TABLE - 1))
    seen[state] = met
    pace = mixer.tables[1, np.int64(met)]
    rate = rates[state]
    if count == 1:
        rate += pace * (np.float32(hits) - rate)
    else:
        rate += min(np.float32(1), pace * np.float32(count)) * (np.float32(hits) / np.float32(count) - rate)
    rate = min(max(rate, np.float32(1e-4)), np.float32(0.999))
    rates[state] = rate
    logits[state] = np.float32(math.log(rate / (np.float32(1) - rate)))


@njit(cache=True, nogil=True)
def correct(mixer: Mixer, scratch: Scratch, count: int, token: int) -> None:
    """Move weights and rates towards what came: `token`, after `gather` gave `count` candidates.

    Of the candidates with little probability, one in eight stands for all, turn by turn; the one that came stands for
    itself. What the candidates that a row does not name have in common is moved once.
    """
    step = np.float32(max(_SMALLEST_STEP, _STEP / (1 + mixer.steps[0] / _STEP_TOKENS)))
    mixer.steps[0] += 1
    by_suffix = mixer.weights[scratch.facts[0]]
    hit, trained, turn = -1, 0, np.int64(mixer.steps[0])
    chosen, errors, counts = scratch.buckets, scratch.errors, scratch.counts  # the buckets have served
    for c in range(count):
        z = scratch.logits[c]
        came = scratch.candidates[c] == token
        quiet = z < np.float32(_QUIET) and not came
        if came:
            hit = c
        if not quiet or (c + turn) % _SAMPLE == 0:
            chosen[trained] = c
            counts[trained] = _SAMPLE if quiet else 1
            errors[trained] = (np.float32(came) - squash(mixer, z)) * step * counts[trained]
            by_suffix[INPUTS] += errors[trained] * np.float32(_BIAS_STEP)
            trained += 1
    for i in range(INPUTS):
        absent, shared, hits = scratch.absent[i], 0, 0
        states, logits = scratch.states[i], mixer.evidence[1, i]
        scratch.shared[:] = 0
        moved = np.float32(0)
        for k in range(trained):
            c = chosen[k]
            state = np.int64(states[c])
            if state == absent:
                shared += counts[k]
                hits += c == hit
                scratch.shared[scratch.bands[c]] += errors[k]
            else:
                nudge = errors[k] * logits[state]
                moved += nudge
                mixer.weights[_SETS + scratch.bands[c], i] += nudge
                _move_rate(mixer, i, state, counts[k], 1 if c == hit else 0)
        if shared > 0 and absent != _UNKNOWN:
            for band in range(FREQUENCIES):
                nudge = scratch.shared[band] * logits[absent]
                moved += nudge
                mixer.weights[_SETS + band, i] += nudge
            _move_rate(mixer, i, absent, shared, hits)
        by_suffix[i] += moved


@njit(cache=True, nogil=True)
def remember(mixer: Mixer, token: int) -> None:
    """Count a token, and put it into the cache of late tokens."""
    mixer.frequency[token] += 1
    mixer.frequency[-1] += 1
    tokens, weights = mixer.cache[0], mixer.cache[1]
    length, total, at, weight = 0, 0, -1, 0
    while length < LONGEST_ROW and weights[length] > 0:
        total += weights[length]
        if tokens[length] == token:
            at = length
        length += 1
    if total + _CACHE_UNIT > _CACHE_MEMORY * _CACHE_UNIT:
        for k in range(length):
            weights[k] -= weights[k] // _CACHE_MEMORY
    if at >= 0:
        weight = weights[at]
    else:
        at = min(length, LONGEST_ROW - 1)
    weight += _CACHE_UNIT
    while at > 0 and weights[at - 1] <= weight:
        tokens[at], weights[at] = tokens[at - 1], weights[at - 1]
        at -= 1
    tokens[at], weights[at] = token, weight
