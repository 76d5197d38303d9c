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

from speculant.drafters.mix.contexts import ECHO_ONE, ECHO_TWO
from speculant.drafters.mix.features import (
    ABSENT,
    CACHE_UNIT,
    COPY,
    DISTANCES,
    FREQUENCIES,
    INPUTS,
    LONGEST_ROW,
    RECENCY,
    SETS,
    SHARES,
    STATES,
    TOTALS,
    UNKNOWN,
    Evidence,
    log_band,
)
from speculant.drafters.mix.repetition import LENGTHS

Array = npt.NDArray[Any]

# First mixing weights, an input a column: suffixes of 1, 2, 3, 4, 6, skip, skeleton, echoes, cache, copy, last use;
# and a bias. Without echoes they are what was learned on half of the development requests.
# A line for no known suffix, one for each length, two for repetitions; then the same where the target's own best
# tokens are known.
_TRUST = (
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.2, 0.17, 0.3, 0.0, 0.34, 0.1, 0.48, 0.03),
    (0.69, 0.0, 0.0, 0.0, 0.0, 0.06, 0.09, 0.2, 0.0, -0.06, 0.1, 0.35, 0.3),
    (0.49, 0.39, 0.0, 0.0, 0.0, 0.11, 0.07, 0.1, 0.0, -0.23, 0.12, 0.3, 0.5),
    (0.41, 0.31, 0.24, 0.0, 0.0, 0.04, 0.06, 0.1, 0.0, -0.31, 0.09, 0.26, 0.23),
    (0.35, 0.29, 0.26, 0.13, 0.0, 0.0, 0.05, 0.1, 0.0, -0.29, 0.05, 0.19, 0.08),
    (0.36, 0.04, 0.23, 0.18, 0.23, -0.08, 0.05, 0.1, 0.0, -0.26, 0.13, 0.2, 0.04),
    (0.28, 0.32, 0.05, -0.02, -0.04, -0.03, 0.09, 0.1, 0.0, -0.22, 0.49, 0.11, 0.18),
    (0.29, 0.18, 0.05, -0.01, 0.08, 0.02, 0.04, 0.1, 0.0, -0.22, 0.7, 0.0, 0.05),
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.8, 0.2, 0.1, 0.2, 0.0),
    (0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.4, 0.3, 0.0, 0.1, 0.1, 0.0),
    (0.0, 0.8, 0.0, 0.0, 0.0, 0.0, 0.3, 0.2, 0.4, -0.3, 0.1, 0.0, 0.0),
    (0.0, 0.4, 0.4, 0.0, 0.0, 0.0, 0.4, 0.1, 0.3, -0.3, 0.1, 0.0, 0.0),
    (0.0, 0.2, 0.4, 0.1, 0.0, 0.0, 0.4, 0.1, 0.3, -0.2, 0.0, 0.0, 0.0),
    (0.1, 0.1, 0.1, 0.1, 0.4, 0.0, 0.2, 0.1, 0.3, -0.1, 0.0, 0.0, 0.0),
    (0.1, 0.1, 0.0, 0.0, 0.0, 0.0, 0.2, 0.2, 0.3, -0.1, 0.2, 0.0, 0.0),
    (0.1, 0.1, 0.1, 0.0, 0.1, 0.0, 0.1, 0.2, 0.3, -0.1, 0.3, 0.0, 0.0),
)
_LAST_USE = (0.001, 0.01, 0.03, 0.06, 0.06, 0.06, 0.03, 0.02, 0.015, 0.015, 0.01, 0.005)  # rates by distance
_RATE, _SLOWEST = 1.5, 0.003
_STEP, _STEP_TOKENS, _SMALLEST_STEP = 0.01, 1000.0, 0.0005
_BIAS_STEP = 0.3
_QUIET, _SAMPLE = -3.5, 8
_CACHE_MEMORY = 200
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
        bands: UInt8[V], the same in powers of two: small enough to stay close to the processor.
        cache: Int64[2, 24], tokens of late and their decayed counts, heaviest first.
        steps: Float64[1], tokens learned from.
        tables: Float32[2, K], the logistic function and the paces of learning, so that they are the same everywhere.
    """

    weights: Array
    evidence: Array
    frequency: Array
    bands: Array
    cache: Array
    steps: Array
    tables: Array


def new_mixer(vocabulary: int) -> Mixer:
    """Return a mixer that begins with plausible guesses: rough figures of what it has learned elsewhere."""
    totals = np.array([1.0, 2, 3, 4, 6, 8, 14])
    share = np.arange(SHARES)
    shares = np.where(share < 4, (share + 0.5) / 16, 0.25 + (share - 3.5) / 12)
    shares[-1] = 1
    named = np.clip(0.9 * np.outer(shares, totals / (totals + 1)), 0.01, 0.95)
    rates = np.empty((INPUTS, STATES))
    rates[:, :ABSENT] = np.stack([0.7 * named, named], axis=-1).ravel()
    rates[ECHO_ONE : ECHO_TWO + 1, :ABSENT] = np.repeat(np.clip(shares, 0.01, 0.95), 2 * TOTALS)
    rates[:, ABSENT:UNKNOWN] = 0.01
    rates[COPY, :LENGTHS] = 1 - 0.45 * 0.77 ** np.arange(LENGTHS)
    rates[COPY, LENGTHS : 2 * LENGTHS] = 0.01
    rates[RECENCY, : DISTANCES * FREQUENCIES] = np.repeat(_LAST_USE, FREQUENCIES)
    rates[:, UNKNOWN] = 0.5
    weights = np.zeros((SETS + FREQUENCIES, INPUTS + 1), np.float32)
    weights[:SETS] = _TRUST
    steps = np.arange(_TABLE)
    squash = 1 / (1 + np.exp(_CLAMP - steps / _SQUASH_STEPS))
    paces = np.maximum(1 / (np.maximum(steps, 1) + _RATE), _SLOWEST)
    return Mixer(
        weights=weights,
        evidence=np.stack([rates, np.log(rates / (1 - rates)), np.zeros_like(rates)]).astype(np.float32),
        frequency=np.zeros(vocabulary + 1, np.int64),
        bands=np.zeros(vocabulary, np.uint8),
        cache=np.zeros((2, LONGEST_ROW), np.int64),
        steps=np.zeros(1),
        tables=np.stack([squash, paces]).astype(np.float32),
    )


def frequency_bands(frequency: Array) -> Array:
    """Return UInt8[V], how often each token was seen, Int64[V], in powers of two."""
    return np.clip(np.frexp(frequency)[1] - 1, 0, FREQUENCIES - 1).astype(np.uint8)


@njit(cache=True, nogil=True)
def combine(mixer: Mixer, evidence: Evidence, count: int) -> None:
    """Mix the evidence for `count` candidates into their logits."""
    sums, weight_set = evidence.sums, evidence.facts[0]
    for band in range(FREQUENCIES):
        base = mixer.weights[weight_set, INPUTS] + mixer.weights[SETS + band, INPUTS]
        for i in range(INPUTS):
            weight = mixer.weights[weight_set, i] + mixer.weights[SETS + band, i]
            sums[band, i] = weight
            base += weight * mixer.evidence[1, i, evidence.absent[i]]
        sums[band, INPUTS] = base
    for c in range(count):
        band = evidence.bands[c]
        evidence.logits[c] = sums[band, INPUTS] + sums[band, RECENCY] * mixer.evidence[1, RECENCY, evidence.recency[c]]
    at = 0
    for i in range(COPY + 1):
        unnamed = mixer.evidence[1, i, evidence.absent[i]]
        while at < evidence.ends[i]:
            c = evidence.named[0, at]
            step = mixer.evidence[1, i, evidence.named[1, at]] - unnamed
            evidence.logits[c] += sums[evidence.bands[c], i] * step
            at += 1
    for c in range(count):
        evidence.logits[c] = min(max(evidence.logits[c], np.float32(-_CLAMP)), np.float32(_CLAMP))


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
    met = min(mixer.evidence[2, i, state] + np.float32(count), np.float32(_TABLE - 1))
    mixer.evidence[2, i, state] = met
    pace = mixer.tables[1, np.int64(met)]
    rate = mixer.evidence[0, i, state]
    if count == 1:
        rate += pace * (np.float32(hits) - rate)
    else:
        rate += min(np.float32(1), pace * np.float32(count)) * (np.float32(hits) / np.float32(count) - rate)
    rate = min(max(rate, np.float32(1e-4)), np.float32(0.999))
    mixer.evidence[0, i, state] = rate
    mixer.evidence[1, i, state] = np.float32(math.log(rate / (np.float32(1) - rate)))


@njit(cache=True, nogil=True)
def correct(mixer: Mixer, evidence: Evidence, count: int, token: int) -> None:
    """Move weights and rates towards what came: `token`, after `gather` and `combine` gave `count` candidates.

    Of the candidates with little probability, one in eight stands for all, turn by turn; the one that came stands for
    itself. What the candidates that an input does not name have in common is moved once.
    """
    step = np.float32(max(_SMALLEST_STEP, _STEP / (1 + mixer.steps[0] / _STEP_TOKENS)))
    mixer.steps[0] += 1
    weight_set, turn = evidence.facts[0], np.int64(mixer.steps[0])
    errors, counts = evidence.errors, evidence.counts
    all_errors, shared = np.zeros(FREQUENCIES, np.float32), np.empty(FREQUENCIES, np.float32)
    hit, trained = -1, 0
    for c in range(count):
        z = evidence.logits[c]
        counts[c] = 1
        if evidence.candidates[c] == token:
            hit = c
        elif z < np.float32(_QUIET):
            counts[c] = 0 if (c + turn) % _SAMPLE else _SAMPLE
        if counts[c] > 0:
            errors[c] = (np.float32(c == hit) - squash(mixer, z)) * step * np.float32(counts[c])
            all_errors[evidence.bands[c]] += errors[c]
            mixer.weights[weight_set, INPUTS] += errors[c] * np.float32(_BIAS_STEP)
            trained += counts[c]
    at = 0
    for i in range(COPY + 1):
        unnamed, hits, moved = trained, 1 if hit >= 0 else 0, np.float32(0)
        shared[:] = all_errors
        while at < evidence.ends[i]:
            c, state = evidence.named[0, at], evidence.named[1, at]
            at += 1
            if counts[c] > 0:
                moved += _nudge(mixer, i, state, errors[c], evidence.bands[c])
                _move_rate(mixer, i, state, counts[c], 1 if c == hit else 0)
                shared[evidence.bands[c]] -= errors[c]
                unnamed -= counts[c]
                hits -= c == hit
        absent = evidence.absent[i]
        if unnamed > 0 and absent != UNKNOWN:
            for band in range(FREQUENCIES):
                moved += _nudge(mixer, i, absent, shared[band], band)
            _move_rate(mixer, i, absent, unnamed, hits)
        mixer.weights[weight_set, i] += moved
    moved = np.float32(0)
    for c in range(count):
        if counts[c] > 0:
            moved += _nudge(mixer, RECENCY, evidence.recency[c], errors[c], evidence.bands[c])
            _move_rate(mixer, RECENCY, evidence.recency[c], counts[c], 1 if c == hit else 0)
    mixer.weights[weight_set, RECENCY] += moved


@njit(cache=True, nogil=True, inline="always")
def _nudge(mixer: Mixer, i: int, state: int, error: float, band: int) -> float:
    """Move the weight of an input for candidates of a frequency, and return by how much."""
    nudge = error * mixer.evidence[1, i, state]
    mixer.weights[SETS + band, i] += nudge
    return nudge


@njit(cache=True, nogil=True)
def remember(mixer: Mixer, token: int) -> None:
    """Count a token, and put it into the cache of late tokens."""
    mixer.frequency[token] += 1
    mixer.bands[token] = log_band(mixer.frequency[token], FREQUENCIES - 1)
    mixer.frequency[-1] += 1
    tokens, weights = mixer.cache[0], mixer.cache[1]
    length, total, at, weight = 0, 0, -1, 0
    while length < LONGEST_ROW and weights[length] > 0:
        total += weights[length]
        if tokens[length] == token:
            at = length
        length += 1
    if total + CACHE_UNIT > _CACHE_MEMORY * CACHE_UNIT:
        for k in range(length):
            weights[k] -= weights[k] // _CACHE_MEMORY
    if at >= 0:
        weight = weights[at]
    else:
        at = min(length, LONGEST_ROW - 1)
    weight += CACHE_UNIT
    while at > 0 and weights[at - 1] <= weight:
        tokens[at], weights[at] = tokens[at - 1], weights[at - 1]
        at -= 1
    tokens[at], weights[at] = token, weight
