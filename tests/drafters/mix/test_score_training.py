"""Training the network of a base."""

from __future__ import annotations

import numpy as np
import pytest

from networks import CLASSES, ENDINGS, GENDERS, VOCABULARY, known, sentences, trained
from speculant.drafters.mix.documents import Documents
from speculant.drafters.mix.score_training import _batches, token_rows, train_scorer, training_tokens
from speculant.drafters.mix.scores import DIMENSIONS, WEIGHTS, add_to_topic, query, score
from tables import ids


def test_the_network_knows_what_counts_do_not() -> None:
    """After a verb and a noun that were never together, the ending has the highest score and the most of the mass."""
    (_, network), right = known(), 0
    new = sentences(5, 200)
    endings = range(ENDINGS, ENDINGS + CLASSES * GENDERS)
    topic, q = np.zeros(DIMENSIONS, np.float32), np.empty(DIMENSIONS, np.float32)
    for at in range(2, len(new), 3):
        for token in new[at - 2 : at]:
            add_to_topic(network, topic, token)
        unit = query(network, ids(new[max(0, at - 6) : at]), topic, q)
        right += max(endings, key=lambda token: score(network, q, unit, token)) == new[at]
        add_to_topic(network, topic, new[at])
    assert right > 180


def test_the_same_seed_gives_the_same_network() -> None:
    """Training is repeatable, and another seed gives another network."""
    text = sentences(0, 300)
    first, again, other = trained(text), trained(text), trained(text, seed=1)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert (first.tables != other.tables).any()


def test_rows_belong_to_frequent_tokens() -> None:
    """Tokens are numbered by frequency as far as there is room; rare ones share row 0."""
    counts = np.array([5.0, 0, 9, 1, 7, 7])
    fixed = counts.size * 2 + WEIGHTS * DIMENSIONS * 4
    for room, rows in ((6, [4, 0, 1, 0, 2, 3]), (3, [0, 0, 1, 0, 2, 0]), (0, [0] * 6)):
        assert token_rows(counts, fixed + room * 3 * DIMENSIONS).tolist() == rows
    assert not token_rows(counts, 0).any()


def test_streams_read_every_document_once() -> None:
    """Streams together read the text in the given order, and know where documents begin."""
    parts = [np.arange(10, 14), np.arange(20, 21), np.arange(30, 37)]
    documents = Documents(
        ids=np.concatenate(parts).astype(np.int32), lengths=np.array([4, 1, 7]), weights=np.array([1, 2, 3], np.float32)
    )
    batches = list(_batches(documents, np.arange(100, dtype=np.uint16), np.array([2, 0, 1]), 3, 4))
    tokens, begins, weights = (np.stack(each) for each in zip(*batches, strict=True))
    assert tokens.T.tolist() == [[30, 31, 32, 33], [34, 35, 36, 10], [11, 12, 13, 20]]
    assert begins.T.astype(int).tolist() == [[1, 0, 0, 0], [1, 0, 0, 1], [1, 0, 0, 1]]
    assert weights.T.tolist() == [[3, 3, 3, 3], [3, 3, 3, 1], [1, 1, 1, 2]]


@pytest.mark.parametrize("count", [1, 2, 100])
def test_small_corpora(count: int) -> None:
    """A corpus of any size can be trained on, and what `advance` is given stays within what was announced."""
    text = sentences(0, count)[: max(2, 3 * count - 1)]
    advanced: list[int] = []
    documents = Documents(ids=text, lengths=np.array([len(text)]), weights=np.ones(1, np.float32))
    counts = np.bincount(text, minlength=VOCABULARY).astype(float)
    network = train_scorer(documents, token_rows(counts, 1 << 20), counts, advance=advanced.append)
    assert np.isfinite(network.weights).all()
    assert sum(advanced) <= training_tokens(len(text))
