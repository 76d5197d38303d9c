"""The arrays of the mixture, and the constants that give their sizes.

An input of the mixture is a context's row, or one of four further sources: recent tokens overall, what followed the
last token earlier in the request, the request's own repetition, and the last use of the candidate. Each frozen base
(base.py) adds an input for every context that it holds, and a base with a network (scores.py) its score.
What an input knows about a candidate is binned into one of STATES states; what was learned about each state is in the
Mixer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from speculant.drafters.mix.contexts import CONTEXTS, ORDERS

Array = npt.NDArray[Any]

# Inputs that are not a context's row: recent tokens overall, what followed the last token in this request, the
# request's own repetition, a token's last use.
CACHE, LOCAL, COPY, RECENCY = CONTEXTS, CONTEXTS + 1, CONTEXTS + 2, CONTEXTS + 3
INPUTS = CONTEXTS + 4  # without a base; those of bases come next, and the score of a network last
MAX_CANDIDATES = 128
LONGEST_ROW = 24
CACHE_UNIT = 1 << 20

BASE_CONTEXTS = 4  # a base holds the first contexts of contexts.py: the last 1, 2, 3 and 4 tokens
LINE = 16  # entries of a base that are read together
LEVELS, LEVEL_BITS = 16, 4  # of probability in a base

SHARES, TOTALS = 14, 7  # bins of a share of a row's total weight, and of the total
ABSENT = SHARES * TOTALS * 2
UNKNOWN = ABSENT + TOTALS  # the state of an input without a row: its logit is 0 and stays so
STATES = UNKNOWN + 1
DISTANCES, FREQUENCIES = 12, 10  # bins of the distance to the last use, and of how frequent a token is
SETS = 2 * (ORDERS + 3)  # by the longest known suffix, or a repetition of 6 tokens, or of 16; and by target top-k
BIASES = 1 << 14  # of tokens: frequent ones have low ids in most vocabularies, so that those have one of their own
BASE_SETS = 1 + BASE_CONTEXTS  # by the longest suffix that a base knows
RATE, LOGIT, SAMPLES = range(3)  # what a Mixer holds of each state


class Mixer(NamedTuple):
    """What is learned beside the rows of contexts.

    Attributes:
        weights: Float32[S, I + 1], mixing weights, first the sets by suffix, then those by frequency and, where there
            are bases, those by the bases' suffix; the last of each is a bias.
        states: Float32[3, I, STATES], the acceptance rate of candidates in a state, its logit, and the number of
            samples.
        biases: Float32[BIASES], what is added to the logit of a candidate, by its id modulo BIASES.
        frequency: Int64[V + 1], how often each token was seen, and last their sum.
        bands: UInt8[V], the same as a binary logarithm: small enough for the processor's caches.
        cache: Int64[2, 24], recent tokens and their decayed counts, heaviest first.
        steps: Float64[1], tokens learned from.
        tables: Float32[2, K], the logistic function and the learning rates by samples, the same on every machine.
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
    """The bases in use, as the kernels take them.

    Attributes:
        first, second, third: UInt32[L, 16], lines; L is 0 where there is none.
        bits: Int64[3], bits of a token in each.
    """

    first: Array
    second: Array
    third: Array
    bits: Array


class Scratch(NamedTuple):
    """Scratch space for one prediction: C candidates, named E times by inputs.

    Attributes:
        candidates: Int64[C], tokens.
        bands: Int64[C], how frequent each is, as a binary logarithm.
        recency: Int64[C], the state of each for the input RECENCY.
        named: Int64[2, E], candidate and state, input by input.
        ends: Int64[I], where each input's part of `named` ends.
        absent: Int64[I], the state of candidates that an input does not name.
        buckets: Int16[256], an open hash table of the candidates by the low bits of their ids.
        tokens, weights: Int64[COPY, 24], the rows.
        lengths: Int64[COPY], of the rows.
        chosen: Int64[2], the set of mixing weights by suffix, and by the bases' suffix.
        sums: Float32[FREQUENCIES, I + 1], mixing weights of both kinds summed, and the logit of a candidate that no
            input names.
        logits, errors: Float32[C], of the mixture.
        counts: Int64[C], how many candidates each stands for in training.
        lines: Int64[BASE_CONTEXTS], where a base keeps each context; -1 for none.
        scores: Int64[C], the state of each candidate for the score of a network.
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


Features = Scratch  # indexes of kernels that earlier versions compiled name it so, and numba reads them first


@njit(cache=True, nogil=True, inline="always")
def has_scores(inputs: int) -> bool:
    """Return whether the last of that many inputs is the score of a network."""
    return (inputs - INPUTS) % BASE_CONTEXTS == 1


@njit(cache=True, nogil=True)
def new_features(inputs: int) -> Scratch:
    """Return uninitialised scratch space for a mixture of that many inputs."""
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
