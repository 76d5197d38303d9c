"""Scores of candidates by a small neural network, which a base may contain in addition to its entries.

Counts say nothing about a context that is missing from the corpus. A network can: tokens that are used alike have
similar vectors, so what follows one is expected after the other (Bengio et al. 2003, A neural probabilistic language
model). The vectors of the last tokens, each scaled by its distance (Mnih and Hinton 2007, the log-bilinear model), and
a decaying mean over all tokens of the request, its topic, are summed to x; then

    q = x + outer relu(inner x + bias),    score(w) = q . output_w,

which estimates log p(w | text), because training by noise-contrastive estimation leaves it nearly normalised
(score_training.py). Each node of the draft costs one evaluation of q, and each candidate one product with a vector of
64 bytes. The mixture takes the score as one more input and learns how far to trust it (mixer.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from speculant.core.tree import Array

DIMENSIONS = 64
PLACES = 5  # latest tokens that contribute their own vector
LATEST, EARLIER, OUTPUT = range(3)  # tables for the last token, for the ones before it, and for candidates
# Rows of the weights: first one per place, then these three, then the layers.
TOPIC, BIAS, SCALE = PLACES, PLACES + 1, PLACES + 2
INNER = PLACES + 3
OUTER = INNER + DIMENSIONS
WEIGHTS = OUTER + DIMENSIONS
CONSTANT = DIMENSIONS - 1  # the constant dimension of q, whose weight is a candidate's bias
DECAY = 0.96  # of the topic, per token
BINS = 96  # number of states for a score
_PER_NAT = 8  # bins per factor of e
_MAX_INTEGER = np.float32(2047)  # keeps the sum of 64 products with 8-bit integers below 2^24


class Scorer(NamedTuple):
    """A network with N rows for a vocabulary of V tokens; if there is none, all arrays are empty.

    Attributes:
        rows: UInt16[V], row of each token; rare tokens share row 0.
        tables: Int8[3, N, 64], vectors of tokens.
        weights: Float32[WEIGHTS, 64], all other weights.
    """

    rows: Array
    tables: Array
    weights: Array


def no_scorer() -> Scorer:
    """Return an empty scorer, for a mixture without a network."""
    arrays = (np.empty(0, np.uint16), np.empty((3, 0, DIMENSIONS), np.int8), np.empty((0, DIMENSIONS), np.float32))
    for array in arrays:
        array.flags.writeable = False  # like mapped arrays, so that the kernels are compiled only once
    return Scorer(*arrays)


def is_valid(scorer: Scorer, vocabulary: int) -> bool:
    """Return whether arrays read from a file are safe for the kernels, which check nothing."""
    rows, tables, weights = scorer
    return bool(
        rows.dtype == np.uint16
        and rows.shape == (vocabulary,)
        and tables.dtype == np.int8
        and tables.ndim == 3
        and tables.shape[::2] == (3, DIMENSIONS)
        and weights.dtype == np.float32
        and weights.shape == (WEIGHTS, DIMENSIONS)
        and rows.max() < tables.shape[1]
    )


@njit(cache=True, nogil=True)
def add_to_topic(scorer: Scorer, topic: Array, token: int) -> None:
    """Update the topic, Float32[64], with a token of the text."""
    if len(scorer.rows) > token:
        vector = scorer.tables[EARLIER, scorer.rows[token]]
        for j in range(DIMENSIONS):
            topic[j] += np.float32(1 - DECAY) * (np.float32(vector[j]) - topic[j])


@njit(cache=True, nogil=True)
def query(scorer: Scorer, window: Array, topic: Array, q: Array) -> float:
    """Write q for the text that ends in window, Int32[W], as integers in Float32[64]; return the value of one unit.

    The result is the same on every processor: float sums have a fixed order, and integer sums are exact in any order.
    """
    rows, weights = scorer.rows, scorer.weights
    x, hidden = np.empty(DIMENSIONS, np.float32), np.empty(DIMENSIONS, np.float32)
    for j in range(DIMENSIONS):
        x[j] = weights[TOPIC, j] * topic[j]
    for place in range(min(PLACES, len(window))):
        token = window[len(window) - 1 - place]
        row = rows[token] if token < len(rows) else 0
        vector = scorer.tables[LATEST if place == 0 else EARLIER, row]
        for j in range(DIMENSIONS):
            x[j] += weights[place, j] * np.float32(vector[j])
    _multiply(weights, INNER, x, hidden)
    for k in range(DIMENSIONS):
        hidden[k] = max(hidden[k] + weights[BIAS, k], np.float32(0))
    _multiply(weights, OUTER, hidden, q)
    maximum = np.float32(0)
    for k in range(DIMENSIONS):
        q[k] = (x[k] + q[k]) * weights[SCALE, k]
        if k == CONSTANT:
            q[k] = weights[SCALE, k]
        maximum = max(maximum, abs(q[k]))
    unit = max(maximum, np.float32(1e-30)) / _MAX_INTEGER
    for k in range(DIMENSIONS):
        q[k] = np.rint(q[k] / unit)
    return unit


@njit(cache=True, nogil=True, inline="always")
def score(scorer: Scorer, q: Array, unit: float, token: int) -> int:
    """Return the state of a token, which is its binned score."""
    rows = scorer.rows
    total = _product(q, scorer.tables[OUTPUT, rows[token] if token < len(rows) else 0]) * unit
    # A file is not verified when it is opened, so no value may lead outside the states.
    at = min(max(total * np.float32(_PER_NAT) + np.float32(BINS), np.float32(0)), np.float32(BINS - 1))
    return np.int64(at) if at == at else 0


@njit(cache=True, nogil=True)
def _multiply(weights: Array, first: int, x: Array, products: Array) -> None:
    """Write the products of x, Float32[64], with a layer, whose rows start at `first`, one per input."""
    for k in range(DIMENSIONS):
        products[k] = np.float32(0)
    for j in range(0, DIMENSIONS, 4):  # four at a time, since each step reads and writes `products`
        a, b, c, d = x[j], x[j + 1], x[j + 2], x[j + 3]
        row = first + j
        for k in range(DIMENSIONS):
            products[k] += (weights[row, k] * a + weights[row + 1, k] * b) + (
                weights[row + 2, k] * c + weights[row + 3, k] * d
            )


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _product(integers: Array, vector: Array) -> float:
    """Return the dot product of integers up to `_MAX_INTEGER`, Float32[64], with Int8[64]: below 2^24, so exact."""
    total = np.float32(0)
    for j in range(DIMENSIONS):
        total += integers[j] * np.float32(vector[j])
    return total


def score_rates() -> Array:
    """Return the probability that each state stands for, Float64[BINS]."""
    return np.asarray(np.exp((np.arange(BINS) + 0.5 - BINS) / _PER_NAT))
