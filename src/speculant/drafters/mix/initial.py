"""The mixture before any learning: rates by formula, weights learned on development requests."""

from __future__ import annotations

import numpy as np

from speculant.core.tree import Array
from speculant.drafters.mix import base_weights, score_weights
from speculant.drafters.mix.arrays import (
    ABSENT,
    BASE_CONTEXTS,
    BIASES,
    COPY,
    DISTANCES,
    FREQUENCIES,
    INPUTS,
    LEVELS,
    LONGEST_ROW,
    RECENCY,
    SHARES,
    STATES,
    TOTALS,
    UNKNOWN,
    Mixer,
)
from speculant.drafters.mix.base import level_probabilities
from speculant.drafters.mix.contexts import TARGET_ONE, TARGET_TWO
from speculant.drafters.mix.mixer import CLAMP, SQUASH_STEPS, TABLE
from speculant.drafters.mix.repetition import LENGTHS
from speculant.drafters.mix.scores import BINS, score_rates

# Initial mixing weights. Columns: suffixes of 1, 2, 3, 4, 6 tokens, skip, skeleton, target top-k after one and two
# tokens, cache, this request, copy, last use; and a bias. Rows: no known suffix, one for each suffix length, two for
# repetitions; then the same again where the target's top-k is known. The first half was learned on half of the
# development requests.
_INITIAL_WEIGHTS = (
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.2, 0.17, 0.3, 0.0, 0.34, 0.0, 0.1, 0.48, 0.03),
    (0.69, 0.0, 0.0, 0.0, 0.0, 0.06, 0.09, 0.2, 0.0, -0.06, 0.0, 0.1, 0.35, 0.3),
    (0.49, 0.39, 0.0, 0.0, 0.0, 0.11, 0.07, 0.1, 0.0, -0.23, 0.0, 0.12, 0.3, 0.5),
    (0.41, 0.31, 0.24, 0.0, 0.0, 0.04, 0.06, 0.1, 0.0, -0.31, 0.0, 0.09, 0.26, 0.23),
    (0.35, 0.29, 0.26, 0.13, 0.0, 0.0, 0.05, 0.1, 0.0, -0.29, 0.0, 0.05, 0.19, 0.08),
    (0.36, 0.04, 0.23, 0.18, 0.23, -0.08, 0.05, 0.1, 0.0, -0.26, 0.0, 0.13, 0.2, 0.04),
    (0.28, 0.32, 0.05, -0.02, -0.04, -0.03, 0.09, 0.1, 0.0, -0.22, 0.0, 0.49, 0.11, 0.18),
    (0.29, 0.18, 0.05, -0.01, 0.08, 0.02, 0.04, 0.1, 0.0, -0.22, 0.0, 0.7, 0.0, 0.05),
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.8, 0.2, 0.0, 0.1, 0.2, 0.0),
    (0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.4, 0.3, 0.0, 0.0, 0.1, 0.1, 0.0),
    (0.0, 0.8, 0.0, 0.0, 0.0, 0.0, 0.3, 0.2, 0.4, -0.3, 0.0, 0.1, 0.0, 0.0),
    (0.0, 0.4, 0.4, 0.0, 0.0, 0.0, 0.4, 0.1, 0.3, -0.3, 0.0, 0.1, 0.0, 0.0),
    (0.0, 0.2, 0.4, 0.1, 0.0, 0.0, 0.4, 0.1, 0.3, -0.2, 0.0, 0.0, 0.0, 0.0),
    (0.1, 0.1, 0.1, 0.1, 0.4, 0.0, 0.2, 0.1, 0.3, -0.1, 0.0, 0.0, 0.0, 0.0),
    (0.1, 0.1, 0.0, 0.0, 0.0, 0.0, 0.2, 0.2, 0.3, -0.1, 0.0, 0.2, 0.0, 0.0),
    (0.1, 0.1, 0.1, 0.0, 0.1, 0.0, 0.1, 0.2, 0.3, -0.1, 0.0, 0.3, 0.0, 0.0),
)
# With a base, added to the weight of the target's top-k after two tokens where it is known; the other weights are the
# same as without top-k. Chosen on 14 stories of the bundled model.
_TOP_K = 0.15
_LAST_USE = (0.001, 0.01, 0.03, 0.06, 0.06, 0.06, 0.03, 0.02, 0.015, 0.015, 0.01, 0.005)  # rates by distance
_SCORED = (0.007, 0.6)  # minimum and maximum rate: even a candidate with a low score is likelier than most tokens
_PRIOR_SAMPLES, _SLOWEST = 1.5, 0.003


def new_mixer(vocabulary: int, bases: int = 0, *, scored: bool = False) -> Mixer:
    """Return a mixer with initial rates and weights close to those learned on development requests.

    Args:
        vocabulary: V, the number of token ids.
        bases: number of bases; each adds one input per context it stores.
        scored: whether one of them has a network that scores candidates, which adds one more input.
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
    steps = np.arange(TABLE)
    squash = 1 / (1 + np.exp(CLAMP - steps / SQUASH_STEPS))
    learning_rates = np.maximum(1 / (np.maximum(steps, 1) + _PRIOR_SAMPLES), _SLOWEST)
    return Mixer(
        weights=_initial_weights(bases, scored).astype(np.float32),
        states=np.stack([rates, np.log(rates / (1 - rates)), np.zeros_like(rates)]).astype(np.float32),
        biases=np.zeros(BIASES, np.float32),
        frequency=np.zeros(vocabulary + 1, np.int64),
        bands=np.zeros(vocabulary, np.uint8),
        cache=np.zeros((2, LONGEST_ROW), np.int64),
        steps=np.zeros(1),
        tables=np.stack([squash, learning_rates]).astype(np.float32),
    )


def _initial_weights(bases: int, scored: bool) -> Array:
    """Return the initial weights, Float64[S, I + 1]; several bases share the weights of one."""
    if not bases:
        return np.concatenate([_INITIAL_WEIGHTS, np.zeros((FREQUENCIES, INPUTS + 1))])
    learned = score_weights if scored else base_weights
    by_suffix, others = np.array(learned.BY_SUFFIX), np.array([*learned.BY_FREQUENCY, *learned.BY_BASE_SUFFIX])
    by_suffix, others = by_suffix / 100, others / 100
    top_k = by_suffix.copy()
    top_k[:, TARGET_TWO] += _TOP_K
    rows = np.concatenate([by_suffix, top_k, others])
    own, of_base, others = np.split(rows, [INPUTS, INPUTS + BASE_CONTEXTS], axis=1)
    return np.concatenate([own, np.tile(of_base / bases, bases), others], axis=1)
