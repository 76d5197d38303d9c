"""Acceptance probabilities learned online: logistic regression over the states of a candidate.

A candidate is a token that some input names. Its state for each input is known (features.py), and the rate at which
candidates in that state were accepted is learned, so that no formula has to say how far a count can be trusted
(indirect modelling, as in the PAQ compressors: Mahoney 2005). The logits of these rates are summed with learned
weights, p = 1 / (1 + exp(-sum_i w_i ln(p_i / (1 - p_i)))), and after each token the weights move by the error times the
input, the gradient of the log loss. Weights are the sum of two sets, one selected by the longest known suffix, one by
the candidate's frequency, and with bases a third; each token also has a bias, which adapts the mixture to the target's
choice of words. Each candidate is a separate binary event, so the mixture is calibrated by construction, and its
probabilities need not sum to one.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from speculant.core.tree import Array
from speculant.drafters.mix.arrays import (
    BIASES,
    CACHE_UNIT,
    FREQUENCIES,
    INPUTS,
    LOGIT,
    LONGEST_ROW,
    RATE,
    RECENCY,
    SAMPLES,
    SETS,
    UNKNOWN,
    Mixer,
    Scratch,
    has_scores,
)
from speculant.drafters.mix.features import log_band
from speculant.drafters.mix.scores import BINS, DIMENSIONS, Scorer, query, score

_STEP, _STEP_TOKENS, _SMALLEST_STEP = 0.01, 1000.0, 0.0005
# With a base, a token moves three sets of weights and more inputs: at the largest step weights diverge for the first
# thousand tokens, so training starts with the step size reached after this many tokens.
_STEPS_WITH_BASE = 4000
_BIAS_STEP = 0.3
# A token's bias moves by this multiple of the step of the weights, but by no more than the second value: larger steps
# at the beginning make probabilities extreme.
_TOKEN_STEP, _MAX_TOKEN_STEP = 80.0, 0.16
_IMPROBABLE, _SUBSAMPLING = -3.5, 8  # of candidates below this logit, one in eight is trained on, with a weight of 8
_CACHE_MEMORY = 200
CLAMP = 12.0  # maximum absolute logit
SQUASH_STEPS = 128  # table entries of the logistic function per unit of the logit
TABLE = 2 * 12 * SQUASH_STEPS + 2
NO_MINIMUM, NO_BOUNDS = np.float32(-math.inf), (np.float32(0), np.float32(0))  # of `add_scores`: score all candidates


def frequency_bands(frequency: Array) -> Array:
    """Return UInt8[V], the binary logarithm of each token's frequency, Int64[V]."""
    return np.clip(np.frexp(frequency)[1] - 1, 0, FREQUENCIES - 1).astype(np.uint8)


@njit(cache=True, nogil=True)
def combine(mixer: Mixer, features: Scratch, count: int) -> None:
    """Write the mixture's logits for `count` candidates, without the scores of a network; see `add_scores`."""
    sums, inputs = features.sums, len(features.absent)
    weight_set, base_set = features.chosen[0], SETS + FREQUENCIES + features.chosen[1]
    sums[:, inputs] = np.float32(0)
    for i in range(inputs + 1):
        shared = mixer.weights[weight_set, i]
        if inputs > INPUTS:
            shared += mixer.weights[base_set, i]
        unnamed = mixer.states[LOGIT, i, features.absent[i]] if i < inputs else np.float32(1)
        for band in range(FREQUENCIES):  # innermost: each sum depends on its previous addition, different bands do not
            weight = shared + mixer.weights[SETS + band, i]
            sums[band, inputs] += weight * unnamed
            if i < inputs:
                sums[band, i] = weight
    for c in range(count):
        band = features.bands[c]
        features.logits[c] = (
            sums[band, inputs] + sums[band, RECENCY] * mixer.states[LOGIT, RECENCY, features.recency[c]]
        )
    at = 0
    for i in range(inputs):
        unnamed = mixer.states[LOGIT, i, features.absent[i]]
        while at < features.ends[i]:
            c = features.named[0, at]
            step = mixer.states[LOGIT, i, features.named[1, at]] - unnamed
            features.logits[c] += sums[features.bands[c], i] * step
            at += 1
    for c in range(count):
        features.logits[c] += mixer.biases[features.candidates[c] % BIASES]
        features.logits[c] = min(max(features.logits[c], np.float32(-CLAMP)), np.float32(CLAMP))


@njit(cache=True, nogil=True)
def score_bounds(mixer: Mixer) -> tuple[float, float]:
    """Return the minimum and maximum logit over the states of a network's score; 0 without a network."""
    lowest, highest, inputs = np.float32(0), np.float32(0), mixer.states.shape[1]
    if has_scores(inputs):
        for state in range(BINS):
            lowest = min(lowest, mixer.states[LOGIT, inputs - 1, state])
            highest = max(highest, mixer.states[LOGIT, inputs - 1, state])
    return lowest, highest


@njit(cache=True, nogil=True)
def add_scores(
    mixer: Mixer, scorer: Scorer, window: Array, topic: Array, features: Scratch, count: int,
    minimum: float, bounds: tuple[float, float],
) -> None:  # fmt: skip
    """Add the network's scores of candidates after window, Int32[W], to the logits that `combine` wrote.

    A candidate that cannot exceed `minimum` with any score within `bounds` (see `score_bounds`) gets the lowest logit
    and is not scored; this saves most products once a draft is full.
    """
    inputs = len(features.absent)
    if not has_scores(inputs):
        return
    sums, logits, states = features.sums, features.logits, mixer.states[LOGIT, inputs - 1]
    lowest, highest = bounds
    q, unit = np.empty(DIMENSIONS, np.float32), np.float32(0)
    for c in range(count):
        weight = sums[features.bands[c], inputs - 1]
        if logits[c] + max(weight * lowest, weight * highest) <= minimum:
            logits[c] = np.float32(-CLAMP)
            continue
        if unit == np.float32(0):
            unit = query(scorer, window, topic, q)
        features.scores[c] = score(scorer, q, unit, features.candidates[c])
        logits[c] = min(max(logits[c] + weight * states[features.scores[c]], np.float32(-CLAMP)), np.float32(CLAMP))


@njit(cache=True, nogil=True, inline="always")
def squash(mixer: Mixer, z: float) -> float:
    """Return 1 / (1 + exp(-z)) by table interpolation, with the same result on every machine."""
    at = (z + np.float32(CLAMP)) * np.float32(SQUASH_STEPS)
    i = np.int64(at)
    left = mixer.tables[0, i]
    return left + (at - np.float32(i)) * (mixer.tables[0, i + 1] - left)


@njit(cache=True, nogil=True, inline="always")
def _move_rate(mixer: Mixer, i: int, state: int, count: int, hits: int) -> None:
    """Update the rate of a state in which `hits` of `count` candidates were correct."""
    samples = min(mixer.states[SAMPLES, i, state] + np.float32(count), np.float32(TABLE - 1))
    mixer.states[SAMPLES, i, state] = samples
    step = mixer.tables[1, np.int64(samples)]
    rate = mixer.states[RATE, i, state]
    if count == 1:
        rate += step * (np.float32(hits) - rate)
    else:
        rate += min(np.float32(1), step * np.float32(count)) * (np.float32(hits) / np.float32(count) - rate)
    rate = min(max(rate, np.float32(1e-4)), np.float32(0.999))
    mixer.states[RATE, i, state] = rate
    mixer.states[LOGIT, i, state] = np.float32(math.log(rate / (np.float32(1) - rate)))


@njit(cache=True, nogil=True)
def train(mixer: Mixer, features: Scratch, count: int, token: int) -> None:
    """Update weights and rates with the actual next token, after `gather` and `combine` for its `count` candidates.

    Of the improbable candidates, one in eight is trained on, in turn, with a weight of eight; the correct one is always
    trained on, with a weight of one. The state shared by all candidates that an input does not name is updated once.
    """
    inputs, before = len(features.absent), mixer.steps[0]
    if inputs > INPUTS:
        before += _STEPS_WITH_BASE
    step = np.float32(max(_SMALLEST_STEP, _STEP / (1 + before / _STEP_TOKENS)))
    token_step = np.float32(min(_TOKEN_STEP, _MAX_TOKEN_STEP / step))
    mixer.steps[0] += 1
    turn, scored = np.int64(mixer.steps[0]), has_scores(inputs)
    weight_set, base_set = features.chosen[0], SETS + FREQUENCIES + features.chosen[1]
    errors, counts = features.errors, features.counts
    all_errors, shared = np.zeros(FREQUENCIES, np.float32), np.empty(FREQUENCIES, np.float32)
    hit, trained = -1, 0
    for c in range(count):
        z = features.logits[c]
        counts[c] = 1
        if features.candidates[c] == token:
            hit = c
        elif z < np.float32(_IMPROBABLE):
            counts[c] = 0 if (c + turn) % _SUBSAMPLING else _SUBSAMPLING
        if counts[c] > 0:
            errors[c] = (np.float32(c == hit) - squash(mixer, z)) * step * np.float32(counts[c])
            all_errors[features.bands[c]] += errors[c]
            mixer.biases[features.candidates[c] % BIASES] += errors[c] * token_step
            mixer.weights[weight_set, inputs] += errors[c] * np.float32(_BIAS_STEP)
            if inputs > INPUTS:
                mixer.weights[base_set, inputs] += errors[c] * np.float32(_BIAS_STEP)
            trained += counts[c]
    at = 0
    for i in range(inputs):
        unnamed, hits, moved = trained, 1 if hit >= 0 else 0, np.float32(0)
        for band in range(FREQUENCIES):
            shared[band] = all_errors[band]
        while at < features.ends[i]:
            c, state = features.named[0, at], features.named[1, at]
            at += 1
            if counts[c] > 0:
                moved += _nudge(mixer, i, state, errors[c], features.bands[c])
                _move_rate(mixer, i, state, counts[c], 1 if c == hit else 0)
                shared[features.bands[c]] -= errors[c]
                unnamed -= counts[c]
                hits -= c == hit
        absent = features.absent[i]
        if unnamed > 0 and absent != UNKNOWN:
            for band in range(FREQUENCIES):
                moved += _nudge(mixer, i, absent, shared[band], band)
            _move_rate(mixer, i, absent, unnamed, hits)
        mixer.weights[weight_set, i] += moved
        if inputs > INPUTS:
            mixer.weights[base_set, i] += moved
    _train_input(mixer, features, RECENCY, features.recency, count, hit)
    if scored:
        _train_input(mixer, features, inputs - 1, features.scores, count, hit)


@njit(cache=True, nogil=True, inline="always")
def _train_input(mixer: Mixer, features: Scratch, i: int, states: Array, count: int, hit: int) -> None:
    """Update weights and rates of an input that has a state for every candidate."""
    moved = np.float32(0)
    for c in range(count):
        if features.counts[c] > 0:
            moved += _nudge(mixer, i, states[c], features.errors[c], features.bands[c])
            _move_rate(mixer, i, states[c], features.counts[c], 1 if c == hit else 0)
    mixer.weights[features.chosen[0], i] += moved
    if len(features.absent) > INPUTS:
        mixer.weights[SETS + FREQUENCIES + features.chosen[1], i] += moved


@njit(cache=True, nogil=True, inline="always")
def _nudge(mixer: Mixer, i: int, state: int, error: float, band: int) -> float:
    """Move an input's weight for candidates of one frequency band, and return the step."""
    nudge = error * mixer.states[LOGIT, i, state]
    mixer.weights[SETS + band, i] += nudge
    return nudge


@njit(cache=True, nogil=True)
def count_token(mixer: Mixer, token: int) -> None:
    """Count a token and add it to the cache of recent tokens."""
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
