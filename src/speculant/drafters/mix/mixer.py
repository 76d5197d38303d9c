"""Acceptance probabilities learned online: logistic regression over the states of a candidate.

A candidate is a token that some input names. For each input its state is known (features.py), and the rate at which
candidates in that state were right is learned, so that no count has to be trusted by formula (indirect modelling, as in
the PAQ compressors: Mahoney 2005). The logits of these rates are summed with learned weights,
p = 1 / (1 + exp(-sum_i w_i ln(p_i / (1 - p_i)))), and after each token the weights move by the error times the input,
the gradient of the log loss. Weights are the sum of two sets, one chosen by the longest known suffix, one by how
frequent the candidate is. Each candidate is a binary event, so the mixture is calibrated by construction and need not
sum to one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from speculant.drafters.mix import base_weights, score_weights
from speculant.drafters.mix.arrays import (
    ABSENT,
    BASE_CONTEXTS,
    CACHE_UNIT,
    COPY,
    DISTANCES,
    FREQUENCIES,
    INPUTS,
    LEVELS,
    LOGIT,
    LONGEST_ROW,
    RATE,
    RECENCY,
    SAMPLES,
    SETS,
    SHARES,
    STATES,
    TOTALS,
    UNKNOWN,
    Features,
    Mixer,
    has_scores,
)
from speculant.drafters.mix.base import level_probabilities
from speculant.drafters.mix.contexts import TARGET_ONE, TARGET_TWO
from speculant.drafters.mix.features import log_band
from speculant.drafters.mix.repetition import LENGTHS
from speculant.drafters.mix.scores import BINS, score_rates

Array = npt.NDArray[Any]

# Initial mixing weights. Columns: suffixes of 1, 2, 3, 4, 6 tokens, skip, skeleton, target top-k after one and two
# tokens, cache, copy, last use; and a bias. Rows: no known suffix, one for each length, two for repetitions; then the
# same where the target's top-k is known. Those of the first half were learned on half of the development requests.
_INITIAL_WEIGHTS = (
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
# With a base, the weight of the target's top-k after two tokens, beside the same weights as without top-k; chosen on 14
# stories of the bundled model.
_TOP_K = 0.15
_LAST_USE = (0.001, 0.01, 0.03, 0.06, 0.06, 0.06, 0.03, 0.02, 0.015, 0.015, 0.01, 0.005)  # rates by distance
_SCORED = (0.007, 0.6)  # rates of low and high scores: even a candidate with a low score is likelier than most tokens
_PRIOR_SAMPLES, _SLOWEST = 1.5, 0.003
_STEP, _STEP_TOKENS, _SMALLEST_STEP = 0.01, 1000.0, 0.0005
# With a base a token moves three sets of weights and more inputs: at the largest step weights diverge for the first
# thousand tokens, so they begin as if they had learned from this many.
_STEPS_WITH_BASE = 4000
_BIAS_STEP = 0.3
_IMPROBABLE, _SUBSAMPLING = -3.5, 8  # of candidates below this logit one in eight is trained on, with its weight
_CACHE_MEMORY = 200
_CLAMP = 12.0
_SQUASH_STEPS = 128
_TABLE = 2 * 12 * _SQUASH_STEPS + 2


def new_mixer(vocabulary: int, bases: int = 0, *, scored: bool = False) -> Mixer:
    """Return a mixer with initial rates and weights close to those learned on development requests.

    Args:
        vocabulary: V, the number of token ids.
        bases: how many bases there are below the tables; each has an input for every context that it holds.
        scored: whether one of them has a network that scores candidates, which is one more input.
    """
    inputs = INPUTS + bases * BASE_CONTEXTS + scored
    totals = np.array([1.0, 2, 3, 4, 6, 8, 14])
    share = np.arange(SHARES)
    shares = np.where(share < 4, (share + 0.5) / 16, 0.25 + (share - 3.5) / 12)
    shares[-1] = 1
    named = np.clip(0.9 * np.outer(shares, totals / (totals + 1)), 0.01, 0.95)
    rates = np.empty((inputs, STATES))
    rates[:, :ABSENT] = np.stack([0.7 * named, named], axis=-1).ravel()
    rates[TARGET_ONE : TARGET_TWO + 1, :ABSENT] = np.repeat(np.clip(shares, 0.01, 0.95), 2 * TOTALS)
    rates[:, ABSENT:UNKNOWN] = 0.01
    rates[COPY, :LENGTHS] = 1 - 0.45 * 0.77 ** np.arange(LENGTHS)
    rates[COPY, LENGTHS : 2 * LENGTHS] = 0.01
    rates[RECENCY, : DISTANCES * FREQUENCIES] = np.repeat(_LAST_USE, FREQUENCIES)
    rates[INPUTS:, : 2 * LEVELS] = np.repeat(level_probabilities(), 2)
    if scored:
        rates[-1, :BINS] = np.clip(score_rates(), *_SCORED)
    rates[:, UNKNOWN] = 0.5
    steps = np.arange(_TABLE)
    squash = 1 / (1 + np.exp(_CLAMP - steps / _SQUASH_STEPS))
    learning_rates = np.maximum(1 / (np.maximum(steps, 1) + _PRIOR_SAMPLES), _SLOWEST)
    return Mixer(
        weights=_initial_weights(bases, scored).astype(np.float32),
        states=np.stack([rates, np.log(rates / (1 - rates)), np.zeros_like(rates)]).astype(np.float32),
        frequency=np.zeros(vocabulary + 1, np.int64),
        bands=np.zeros(vocabulary, np.uint8),
        cache=np.zeros((2, LONGEST_ROW), np.int64),
        steps=np.zeros(1),
        tables=np.stack([squash, learning_rates]).astype(np.float32),
    )


def _initial_weights(bases: int, scored: bool) -> Array:
    """Return Float64[S, I + 1]; several bases share the weights of one."""
    if not bases:
        return np.concatenate([_INITIAL_WEIGHTS, np.zeros((FREQUENCIES, INPUTS + 1))])
    learned = score_weights if scored else base_weights
    top_k = np.array(learned.BY_SUFFIX)
    top_k[:, TARGET_TWO] += _TOP_K
    rows = np.concatenate([learned.BY_SUFFIX, top_k, learned.BY_FREQUENCY, learned.BY_BASE_SUFFIX])
    own, of_base, others = np.split(rows, [INPUTS, INPUTS + BASE_CONTEXTS], axis=1)
    return np.concatenate([own, np.tile(of_base / bases, bases), others], axis=1)


def frequency_bands(frequency: Array) -> Array:
    """Return UInt8[V], the binary logarithm of how often each token was seen, Int64[V]."""
    return np.clip(np.frexp(frequency)[1] - 1, 0, FREQUENCIES - 1).astype(np.uint8)


@njit(cache=True, nogil=True)
def combine(mixer: Mixer, features: Features, count: int) -> None:
    """Write the mixture's logits of `count` candidates."""
    sums, inputs = features.sums, len(features.absent)
    scored = has_scores(inputs)
    weight_set, base_set = features.chosen[0], SETS + FREQUENCIES + features.chosen[1]
    for band in range(FREQUENCIES):
        unnamed_by_all = np.float32(0)
        for i in range(inputs):
            weight = mixer.weights[weight_set, i] + mixer.weights[SETS + band, i]
            if inputs > INPUTS:
                weight += mixer.weights[base_set, i]
            sums[band, i] = weight
            unnamed_by_all += weight * mixer.states[LOGIT, i, features.absent[i]]
        unnamed_by_all += mixer.weights[weight_set, inputs] + mixer.weights[SETS + band, inputs]
        if inputs > INPUTS:
            unnamed_by_all += mixer.weights[base_set, inputs]
        sums[band, inputs] = unnamed_by_all
    for c in range(count):
        band = features.bands[c]
        features.logits[c] = (
            sums[band, inputs] + sums[band, RECENCY] * mixer.states[LOGIT, RECENCY, features.recency[c]]
        )
        if scored:
            features.logits[c] += sums[band, inputs - 1] * mixer.states[LOGIT, inputs - 1, features.scores[c]]
    at = 0
    for i in range(inputs):
        unnamed = mixer.states[LOGIT, i, features.absent[i]]
        while at < features.ends[i]:
            c = features.named[0, at]
            step = mixer.states[LOGIT, i, features.named[1, at]] - unnamed
            features.logits[c] += sums[features.bands[c], i] * step
            at += 1
    for c in range(count):
        features.logits[c] = min(max(features.logits[c], np.float32(-_CLAMP)), np.float32(_CLAMP))


@njit(cache=True, nogil=True, inline="always")
def squash(mixer: Mixer, z: float) -> float:
    """Return 1 / (1 + exp(-z)) by interpolation, the same on every machine."""
    at = (z + np.float32(_CLAMP)) * np.float32(_SQUASH_STEPS)
    i = np.int64(at)
    left = mixer.tables[0, i]
    return left + (at - np.float32(i)) * (mixer.tables[0, i + 1] - left)


@njit(cache=True, nogil=True, inline="always")
def _move_rate(mixer: Mixer, i: int, state: int, count: int, hits: int) -> None:
    """Learn that `hits` of `count` candidates in a state were right."""
    samples = min(mixer.states[SAMPLES, i, state] + np.float32(count), np.float32(_TABLE - 1))
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
def train(mixer: Mixer, features: Features, count: int, token: int) -> None:
    """Update weights and rates with the token that followed; `gather` and `combine` returned `count` candidates.

    Of the improbable candidates one in eight is trained on, in turn, with a weight of eight; the right one always is,
    with a weight of one. The state shared by all candidates that an input does not name is updated once.
    """
    inputs, before = len(features.absent), mixer.steps[0]
    if inputs > INPUTS:
        before += _STEPS_WITH_BASE
    step = np.float32(max(_SMALLEST_STEP, _STEP / (1 + before / _STEP_TOKENS)))
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
            mixer.weights[weight_set, inputs] += errors[c] * np.float32(_BIAS_STEP)
            if inputs > INPUTS:
                mixer.weights[base_set, inputs] += errors[c] * np.float32(_BIAS_STEP)
            trained += counts[c]
    at = 0
    for i in range(inputs):
        unnamed, hits, moved = trained, 1 if hit >= 0 else 0, np.float32(0)
        shared[:] = all_errors
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
def _train_input(mixer: Mixer, features: Features, i: int, states: Array, count: int, hit: int) -> None:
    """Update weights and rates of an input that knows a state of every candidate."""
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
    """Move the weight of an input for candidates of a frequency, and return the step."""
    nudge = error * mixer.states[LOGIT, i, state]
    mixer.weights[SETS + band, i] += nudge
    return nudge


@njit(cache=True, nogil=True)
def count_token(mixer: Mixer, token: int) -> None:
    """Count a token, and add it to the cache of recent tokens."""
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
