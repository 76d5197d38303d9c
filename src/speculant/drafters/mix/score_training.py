"""Training of the network that scores candidates (scores.py), on the documents of a base.

The loss is noise-contrastive estimation (Gutmann and Hyvarinen 2010; for language models Mnih and Teh 2012): the
network learns to distinguish the actual next token from random ones, which also leaves its scores nearly normalised.
All rows of a batch share the random tokens (Zoph et al. 2016), so that everything but the lookups is a product of small
matrices. Vectors are trained by Adagrad with one rate per row, other weights by Adam. Documents are read in random
order, in as many streams as a batch has rows, and stay on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numba import njit

from speculant.core.tree import Array
from speculant.drafters.mix.documents import Documents
from speculant.drafters.mix.scores import (
    BIAS,
    CONSTANT,
    DECAY,
    DIMENSIONS,
    EARLIER,
    INNER,
    LATEST,
    OUTER,
    OUTPUT,
    PLACES,
    SCALE,
    TOPIC,
    WEIGHTS,
    Scorer,
)

_MAX_ROWS = 1 << 16
_FEWEST_USES = 3  # minimum occurrences of a token that gets its own row
_STREAMS = 512
_NOISE = 256  # random tokens per batch
_NOISE_POWER = 0.75  # exponent of the token frequency in the noise distribution
_PASSES, _FEW_TOKENS = 3, 20_000_000  # maximum passes over a corpus, and the maximum tokens of repeated passes in total
_MAX_TOKENS = 60_000_000  # maximum tokens of a corpus; the rest is left out
_ROW_STEP, _WEIGHT_STEP = 0.1, 2e-3
_NONE = -1  # placeholder for tokens before the start of a document


def token_rows(counts: Array, budget: int) -> Array:
    """Return the row of each token, UInt16[V]; rare tokens, and tokens that exceed the budget, share row 0.

    Args:
        counts: Float64[V], how often each token occurs.
        budget: maximum bytes for the network.
    """
    rows = np.zeros(len(counts), np.uint16)
    room = (budget - rows.nbytes - WEIGHTS * DIMENSIONS * 4) // (3 * DIMENSIONS)
    frequent = np.flatnonzero(counts >= _FEWEST_USES)
    order = frequent[np.argsort(-counts[frequent], kind="stable")][: max(0, min(room, _MAX_ROWS) - 1)]
    rows[order] = np.arange(1, len(order) + 1)
    return rows


def train_scorer(
    documents: Documents, rows: Array, counts: Array, *, advance: Callable[[int], object], seed: int = 0
) -> Scorer:
    """Return a network trained on documents; the result depends only on the seed, the machine and its thread count.

    Args:
        documents: documents with at least two tokens in total.
        rows: row of each token, see `token_rows`.
        counts: Float64[V], how often each token occurs.
        advance: called with the number of tokens trained on since the last call.
        seed: seed of the initial vectors, the order of documents and the noise.
    """
    random = np.random.default_rng(seed)
    network = _Network(np.maximum(np.bincount(rows, counts), 0.2), random)
    total = len(documents.ids)
    streams = int(np.clip(total // 1024, 16, _STREAMS))
    passes = _passes(total)
    steps = min(total, _MAX_TOKENS) // streams
    done = 0
    for _ in range(passes):
        order = random.permutation(len(documents.lengths))
        for tokens, begins, weights in _batches(documents, rows, order, streams, steps):
            network.step(tokens, begins, weights, 1 - done / (passes * steps))
            done += 1
            if done % 64 == 0:
                advance(64 * streams)
    return Scorer(rows, *network.quantise_tables())


def training_tokens(total: int) -> int:
    """Return how many tokens training processes for documents of `total` tokens, repetitions included."""
    return _passes(total) * min(total, _MAX_TOKENS)


def _passes(total: int) -> int:
    return max(1, min(_PASSES, _FEW_TOKENS // total))


class _Network:
    """The weights during training."""

    def __init__(self, counts: Array, random: np.random.Generator) -> None:
        size = len(counts)
        self._random = random
        self._tables = np.zeros((3, size, DIMENSIONS), np.float32)
        self._tables[:OUTPUT] = random.standard_normal((2, size, DIMENSIONS)) * 0.1
        self._tables[OUTPUT] = random.standard_normal((size, DIMENSIONS)) * 0.02
        self._tables[OUTPUT, :, CONSTANT] = np.log(counts / counts.sum())
        self._squares = np.full((3, size), 1e-4, np.float32)  # sums of squared gradients
        noise = counts**_NOISE_POWER
        self._cumulative = np.cumsum(noise / noise.sum())
        self._log_noise = np.log(_NOISE * noise / noise.sum()).astype(np.float32)
        nearness = np.array([1, 0.7, 0.5, 0.35, 0.3])
        self._places = _Adam(np.repeat(nearness[:, None], DIMENSIONS, 1))
        self._topic = _Adam(np.full(DIMENSIONS, 1.5))
        self._inner = _Adam(random.standard_normal((DIMENSIONS, DIMENSIONS)) / np.sqrt(DIMENSIONS))
        self._bias = _Adam(np.zeros(DIMENSIONS))
        self._outer = _Adam(random.standard_normal((DIMENSIONS, DIMENSIONS)) * 0.05)
        self._window: Array = np.empty((0, PLACES), np.int32)  # rows of the last tokens, latest first
        self._topics: Array = np.empty((0, DIMENSIONS), np.float32)
        self._wrong: Array = np.empty((0, 0), np.float32)

    def step(self, targets: Array, begins: Array, weights: Array, rate: float) -> None:
        """Train on the next token of every stream.

        Args:
            targets: Int32[B], rows of the next tokens.
            begins: Bool[B], whether a document begins with the token, in which case it is not trained on.
            weights: Float32[B], weight of each token.
            rate: learning rate schedule, from 1 down to 0.
        """
        if not len(self._window):
            self._window = np.full((len(targets), PLACES), _NONE, np.int32)
            self._topics = np.zeros((len(targets), DIMENSIONS), np.float32)
        self._window[begins], self._topics[begins] = _NONE, 0
        weights = np.where(begins, np.float32(0), weights)
        x = np.empty((len(targets), DIMENSIONS), np.float32)
        _sum_inputs(self._tables, self._places.values, self._topic.values, self._window, self._topics, x)
        hidden = np.maximum(x @ self._inner.values.T + self._bias.values, 0)
        q = x + hidden @ self._outer.values.T
        q[:, CONSTANT] = 1
        outputs = self._tables[OUTPUT]
        noise = np.searchsorted(self._cumulative, self._random.random(_NOISE)).astype(np.int32)
        noise = np.minimum(noise, len(outputs) - 1)
        noisy, right = outputs[noise], outputs[targets]
        if self._wrong.shape != (len(q), _NOISE):
            self._wrong = np.empty((len(q), _NOISE), np.float32)
        wrong = np.matmul(q, noisy.T, out=self._wrong)
        wrong -= self._log_noise[noise]
        _logistic(wrong)
        wrong *= weights[:, None]  # gradients with respect to the scores
        missed = (q * right).sum(1) - self._log_noise[targets]
        _logistic(missed)
        missed = (missed - 1) * weights
        by_q = missed[:, None] * right + wrong @ noisy
        by_q[:, CONSTANT] = 0
        row_step, weight_step = np.float32(_ROW_STEP * rate + 1e-4), _WEIGHT_STEP * rate + 1e-5
        _move_rows(outputs, self._squares[OUTPUT], noise, wrong.T @ q, row_step)
        _move_rows(outputs, self._squares[OUTPUT], targets, missed[:, None] * q, row_step)
        by_hidden = (by_q @ self._outer.values) * (hidden > 0)
        by_x = by_q + by_hidden @ self._inner.values
        by_places, by_topic = np.zeros_like(self._places.values), (by_x * self._topics).sum(0)
        _move_inputs(self._tables, self._squares, self._places.values, by_places, self._window, by_x, row_step)
        self._outer.move(by_q.T @ hidden, weight_step)
        self._inner.move(by_hidden.T @ x, weight_step)
        self._bias.move(by_hidden.sum(0), weight_step)
        self._places.move(by_places, weight_step)
        self._topic.move(by_topic, weight_step)
        self._window[:, 1:] = self._window[:, :-1].copy()
        self._window[:, 0] = targets
        self._topics += np.float32(1 - DECAY) * (self._tables[EARLIER, targets] - self._topics)

    def quantise_tables(self) -> tuple[Array, Array]:
        """Return the tables Int8[3, N, 64] and the weights Float32[WEIGHTS, 64] of a `Scorer`."""
        scales = np.quantile(np.abs(self._tables), 0.9995, axis=1) / 127 + 1e-9
        scales[OUTPUT, CONSTANT] = np.abs(self._tables[OUTPUT, :, CONSTANT]).max() / 127 + 1e-9
        tables = np.clip(np.rint(self._tables / scales[:, None]), -127, 127).astype(np.int8)
        weights = np.empty((WEIGHTS, DIMENSIONS), np.float32)
        weights[:PLACES] = self._places.values * scales[EARLIER]
        weights[0] = self._places.values[0] * scales[LATEST]
        weights[TOPIC] = self._topic.values * scales[EARLIER]
        weights[BIAS], weights[SCALE] = self._bias.values, scales[OUTPUT]
        weights[INNER:OUTER], weights[OUTER:] = self._inner.values.T, self._outer.values.T
        return tables, weights


class _Adam:
    """Weights and the moments of their gradients (Kingma and Ba 2015)."""

    def __init__(self, values: Array) -> None:
        self.values: Array = values.astype(np.float32)
        self._mean, self._square = np.zeros_like(self.values), np.zeros_like(self.values)
        self._steps = 0

    def move(self, gradient: Array, step: float) -> None:
        """Take one step against the gradient."""
        self._steps += 1
        self._mean += np.float32(0.1) * (gradient - self._mean)
        self._square += np.float32(0.002) * (gradient * gradient - self._square)
        mean, square = self._mean / (1 - 0.9**self._steps), self._square / (1 - 0.998**self._steps)
        self.values -= np.float32(step) * (mean / (np.sqrt(square) + 1e-8)).astype(np.float32)


def _logistic(z: Array) -> None:
    """Replace logits by probabilities, in place: allocating memory for each step would take a third of the time."""
    np.clip(z, -20, 20, out=z)
    np.exp(np.negative(z, out=z), out=z)
    np.reciprocal(np.add(z, 1, out=z), out=z)


def _batches(
    documents: Documents, rows: Array, order: Array, streams: int, steps: int
) -> Iterator[tuple[Array, Array, Array]]:
    """Yield the next token of every stream: rows Int32[B], whether a document begins Bool[B], weights Float32[B].

    Documents in `order` form one long text, of which every stream reads an equal part.
    """
    starts = np.cumsum(documents.lengths) - documents.lengths
    ends = np.cumsum(documents.lengths[order])
    first = np.arange(streams, dtype=np.int64) * steps
    places = np.searchsorted(ends, first, side="right")  # indices into `order`
    offsets = first - (ends[places] - documents.lengths[order[places]])
    begins = np.ones(streams, np.bool_)
    for _ in range(steps):
        tokens, weights = np.empty(streams, np.int32), np.empty(streams, np.float32)
        current = order[places]
        tokens[:] = rows[documents.ids[starts[current] + offsets]]
        weights[:] = documents.weights[current]
        yield tokens, begins | (offsets == 0), weights
        begins = np.zeros(streams, np.bool_)
        offsets += 1
        ended = offsets == documents.lengths[current]
        places, offsets = np.minimum(places + ended, len(order) - 1), np.where(ended, 0, offsets)


@njit(cache=True, nogil=True)
def _sum_inputs(tables: Array, places: Array, topic: Array, window: Array, topics: Array, x: Array) -> None:
    """Write the sums of scaled vectors, the network's input, to x, Float32[B, 64]."""
    for b in range(len(x)):
        for j in range(DIMENSIONS):
            x[b, j] = topic[j] * topics[b, j]
        for place in range(PLACES):
            row = window[b, place]
            if row != _NONE:
                vector = tables[LATEST if place == 0 else EARLIER, row]
                for j in range(DIMENSIONS):
                    x[b, j] += places[place, j] * vector[j]


@njit(cache=True, nogil=True)
def _move_inputs(
    tables: Array,
    squares: Array,
    places: Array,
    by_places: Array,
    window: Array,
    by_x: Array,
    step: float,
) -> None:
    """Update the vectors of windows with the gradients of the sums, Float32[B, 64]; accumulate those of the places."""
    gradient = np.empty(DIMENSIONS, np.float32)
    for b in range(len(window)):
        for place in range(PLACES):
            row = window[b, place]
            if row == _NONE:
                continue
            table = LATEST if place == 0 else EARLIER
            vector = tables[table, row]
            for j in range(DIMENSIONS):
                gradient[j] = by_x[b, j] * places[place, j]
                by_places[place, j] += by_x[b, j] * vector[j]
            _move_row(vector, squares[table], row, gradient, step)


@njit(cache=True, nogil=True)
def _move_rows(table: Array, squares: Array, rows: Array, gradients: Array, step: float) -> None:
    """Move rows of a table against their gradients, Float32[R, 64]."""
    for r in range(len(rows)):
        _move_row(table[rows[r]], squares, rows[r], gradients[r], step)


@njit(cache=True, nogil=True, inline="always")
def _move_row(vector: Array, squares: Array, row: int, gradient: Array, step: float) -> None:
    total = np.float32(0)
    for j in range(DIMENSIONS):
        total += gradient[j] * gradient[j]
    squares[row] += total / np.float32(DIMENSIONS)
    rate = np.float32(step) / np.sqrt(squares[row] + np.float32(1e-6))
    for j in range(DIMENSIONS):
        vector[j] -= rate * gradient[j]
