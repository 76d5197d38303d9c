"""Arrays of the mixture, and the constants that define their sizes.

An input of the mixture is the row of a context, or one of four other sources: recent tokens across all requests, tokens
that followed the last token earlier in the request, a repetition within the request, and the candidate's last use. Each
frozen base (base.py) adds one input per context it stores, and a base with a network (scores.py) adds its score.
For each input, what is known about a candidate is binned into one of STATES states; what was learned about each state
is stored in the Mixer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from speculant.core.tree import Array
from speculant.drafters.mix.contexts import CONTEXTS, ORDERS

# Inputs other than rows of contexts: recent tokens across all requests, tokens that followed the last token in this
# request, the repetition within the request, and a token's last use.
CACHE, LOCAL, COPY, RECENCY = CONTEXTS, CONTEXTS + 1, CONTEXTS + 2, CONTEXTS + 3
INPUTS = CONTEXTS + 4  # without bases; inputs of bases come next, and the score of a network last
MAX_CANDIDATES = 128
LONGEST_ROW = 24
CACHE_UNIT = 1 << 20

BASE_CONTEXTS = 4  # a base stores the first contexts of contexts.py: the last 1, 2, 3 and 4 tokens
LINE = 16  # entries of a base that are read together
LEVELS, LEVEL_BITS = 16, 4  # quantised probabilities in a base

SHARES, TOTALS = 14, 7  # bins for a share of a row's total weight, and for the total weight
ABSENT = SHARES * TOTALS * 2
UNKNOWN = ABSENT + TOTALS  # the state of an input without a row: its logit is always 0
STATES = UNKNOWN + 1
DISTANCES, FREQUENCIES = 12, 10  # bins for the distance to the last use, and for token frequency
SETS = 2 * (ORDERS + 3)  # by the longest known suffix or a repetition of 6+ or 16+ tokens; doubled by target top-k
BIASES = 1 << 14  # per token id modulo this: frequent tokens have low ids in most vocabularies, so they do not collide
BASE_SETS = 1 + BASE_CONTEXTS  # by the longest suffix that a base knows
RATE, LOGIT, SAMPLES = range(3)  # what a Mixer stores for each state


class Mixer(NamedTuple):
    """Learned parameters other than the rows of contexts.

    Attributes:
        weights: Float32[S, I + 1], mixing weights: first the sets by suffix, then the sets by frequency and, with
            bases, the sets by the bases' suffix. The last column is a bias.
        states: Float32[3, I, STATES], the acceptance rate of candidates in a state, its logit, and the number of
            samples.
        biases: Float32[BIASES], added to the logit of a candidate, indexed by its id modulo BIASES.
        frequency: Int64[V + 1], how often each token was seen; the last element is the sum.
        bands: UInt8[V], the binary logarithm of `frequency`: small enough for the processor's caches.
        cache: Int64[2, 24], recent tokens and their decayed counts, heaviest first.
        steps: Float64[1], number of tokens trained on.
        tables: Float32[2, K], lookup tables of the logistic function and of learning rates by number of samples, so
            that results are the same on every machine.
    """

    weights: Array
    states: Array
    biases: Array
    frequency: Array
    bands: Array
    cache: Array
    steps: Array
    tables: Array


class Bases(NamedTuple):
    """The bases in use, in the form that the kernels take.

    Attributes:
        first, second, third: UInt32[L, 16], lines of each base; L is 0 if it is missing.
        bits: Int64[3], bits per token in each base.
    """

    first: Array
    second: Array
    third: Array
    bits: Array


class Scratch(NamedTuple):
    """Scratch space for one prediction, with C candidates that the inputs name E times in total.

    Attributes:
        candidates: Int64[C], tokens.
        bands: Int64[C], binary logarithm of each candidate's frequency.
        recency: Int64[C], state of each candidate for the input RECENCY.
        named: Int64[2, E], candidate and state, input by input.
        ends: Int64[I], where each input's part of `named` ends.
        absent: Int64[I], state of the candidates that an input does not name.
        buckets: Int16[256], open-addressing hash table of the candidates, by the low bits of their ids.
        tokens, weights: Int64[COPY, 24], the rows.
        lengths: Int64[COPY], lengths of the rows.
        chosen: Int64[2], the selected sets of mixing weights: by suffix, and by the bases' suffix.
        sums: Float32[FREQUENCIES, I + 1], the mixing weights of all selected sets added up; the last column is the
            logit of a candidate that no input names.
        logits, errors: Float32[C], logits of the mixture, and scaled prediction errors in training.
        counts: Int64[C], how many candidates each one stands for in training.
        lines: Int64[BASE_CONTEXTS], line of a base that would hold each context; -1 for none.
        scores: Int64[C], state of each candidate for the score of a network.
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
    chosen: Array
    sums: Array
    logits: Array
    errors: Array
    counts: Array
    lines: Array
    scores: Array


Features = Scratch  # kernel caches compiled by earlier versions use this name, and numba reads their indexes first


@njit(cache=True, nogil=True, inline="always")
def has_scores(inputs: int) -> bool:
    """Return whether the last of `inputs` inputs is the score of a network."""
    return (inputs - INPUTS) % BASE_CONTEXTS == 1


@njit(cache=True, nogil=True)
def new_features(inputs: int) -> Scratch:
    """Return uninitialised scratch space for a mixture with `inputs` inputs."""
    return Scratch(
        np.empty(MAX_CANDIDATES, np.int64),
        np.empty(MAX_CANDIDATES, np.int64),
        np.empty(MAX_CANDIDATES, np.int64),
        np.empty((2, COPY * LONGEST_ROW + 1 + (inputs - INPUTS) * LINE), np.int64),
        np.empty(inputs, np.int64),
        np.empty(inputs, np.int64),
        np.empty(256, np.int16),
        np.empty((COPY, LONGEST_ROW), np.int64),
        np.empty((COPY, LONGEST_ROW), np.int64),
        np.empty(COPY, np.int64),
        np.empty(2, np.int64),
        np.empty((FREQUENCIES, inputs + 1), np.float32),
        np.empty(MAX_CANDIDATES, np.float32),
        np.empty(MAX_CANDIDATES, np.float32),
        np.empty(MAX_CANDIDATES, np.int64),
        np.empty(BASE_CONTEXTS, np.int64),
        np.empty(MAX_CANDIDATES, np.int64),
    )
