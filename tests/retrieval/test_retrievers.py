"""Retrievers find what brute force finds, whatever else is asked beside, and their caches agree with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculant.core.errors import FileError, UsageError
from speculant.retrieval.bm25 import Bm25Retriever, rank
from speculant.retrieval.dense import DenseRetriever, GraphRetriever
from speculant.retrieval.local_cache import LocalCache
from speculant.retrieval.retriever import read_documents, split_passages

WORDS = [f"word{number}" for number in range(60)]
DOCUMENTS = [
    " ".join(np.random.default_rng(seed).choice(WORDS, 20, p=np.arange(60, 0, -1) / 1830)) for seed in range(300)
]
QUERIES = [" ".join(np.random.default_rng(1000 + seed).choice(WORDS, 6)) for seed in range(20)]


def encode(texts: Sequence[str]) -> Any:
    """Return unit vectors Float32[N, 16] of texts: sums of random vectors of their words."""
    table = np.random.default_rng(0).normal(size=(60, 16))
    vectors = np.array([sum(table[int(word[4:])] for word in text.split()) for text in texts])
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def retriever(kind: str) -> Any:
    """Return a retriever of the documents."""
    if kind == "bm25":
        pytest.importorskip("bm25s")
        return Bm25Retriever(DOCUMENTS)
    if kind == "graph":
        pytest.importorskip("faiss")
        return GraphRetriever(DOCUMENTS, encode)
    return DenseRetriever(DOCUMENTS, encode)


@pytest.mark.parametrize("kind", ["bm25", "dense", "graph"])
def test_a_query_finds_the_same_alone_and_beside_others(kind: str) -> None:
    """Guards identity: verification searches in batches what plain retrieval searches one by one."""
    found = retriever(kind)
    queries = [found.encode(query) for query in QUERIES]
    together = found.search(queries, 5)
    assert together.shape == (20, 5)
    for query, row in zip(queries, together, strict=True):
        assert found.search([query], 5)[0].tolist() == row.tolist()
        assert found.search([query], 1)[0, 0] == row[0]


@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_the_best_are_those_of_brute_force(kind: str) -> None:
    """Guards ranking, ties by id included."""
    found, every = retriever(kind), np.arange(len(DOCUMENTS))
    for query in map(found.encode, QUERIES):
        scores = found.score(query, every).astype(np.float64)
        assert found.search([query], 7)[0].tolist() == sorted(every.tolist(), key=lambda each: -scores[each])[:7]


def test_bm25_scores_are_those_of_its_package() -> None:
    """Guards the reading of the package's sparse matrix."""
    bm25s = pytest.importorskip("bm25s")
    index = bm25s.BM25()
    index.index(bm25s.tokenize(DOCUMENTS, return_ids=False, show_progress=False), show_progress=False)
    found = Bm25Retriever(DOCUMENTS)
    for query in QUERIES:
        expected = index.get_scores(sorted(set(query.split())))
        np.testing.assert_allclose(found.score(found.encode(query), np.arange(300)), expected, rtol=1e-5)


def test_the_graph_finds_nearly_the_best() -> None:
    """Guards the approximate retriever: it is told inner products, and its best one is mostly the true one."""
    exact, near = retriever("dense"), retriever("graph")
    queries = [exact.encode(query) for query in QUERIES]
    assert np.mean(exact.search(queries, 1) == near.search(queries, 1)) > 0.9


@pytest.mark.parametrize("kind", ["bm25", "dense", "graph"])
def test_words_that_no_document_has_find_something(kind: str) -> None:
    """Guards queries without a match, and k beyond the collection."""
    found = retriever(kind)
    query = found.encode("nothing") if kind == "bm25" else np.zeros(16, np.float32)
    assert (found.search([query], 1000) >= 0).all()
    assert found.search([query], 1)[0, 0] == found.search([query], 3)[0, 0]


def test_rank_breaks_ties_by_place() -> None:
    """Guards equal scores, at the border too."""
    assert rank(np.array([1, 3, 2, 3, 2, 2], np.float32), 4).tolist() == [1, 3, 2, 4]


def test_the_cache_guesses_the_best_it_holds_and_forgets_the_oldest() -> None:
    """Guards guesses: of what it holds the retriever's best, within its size."""
    found = retriever("dense")
    cache, query = LocalCache(found, 10), found.encode(QUERIES[0])
    best = found.search([query], 40)[0].tolist()
    cache.add(best[20:30])
    assert cache.guess(query) == best[20]
    cache.add(best[:5])
    assert (len(cache), cache.guess(query)) == (10, best[0])
    cache.add(best[30:40])
    assert cache.guess(query) == best[30]


@pytest.mark.parametrize(
    ("vectors", "said"),
    [(np.zeros((3, 4)), "300 documents"), (np.zeros(300), "300"), (np.full((300, 4), np.nan), "no numbers")],
)
def test_wrong_vectors_are_refused(vectors: Any, said: str) -> None:
    """Guards users' own vectors before anything is searched."""
    with pytest.raises(UsageError, match=said):
        DenseRetriever(DOCUMENTS, encode, vectors=vectors)


def test_files_of_documents(tmp_path: Path) -> None:
    """Guards both forms of a collection, and what is wrong with a file."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('"one"\n{"text": "two"}\n\n{"document": "three"}\n', encoding="utf-8")
    assert read_documents(rows) == ["one", "two", "three"]
    text = tmp_path / "text.txt"
    text.write_text("a b c\n\nd e\n\n" + "x " * 9, encoding="utf-8")
    assert read_documents(text, words=5) == ["a b c d e", "x x x x x", "x x x x"]
    assert split_passages("", 5) == []
    rows.write_text('{"title": "no text"}\n', encoding="utf-8")
    with pytest.raises(FileError, match="line 1"):
        read_documents(rows)
    rows.write_text("not json\n", encoding="utf-8")
    with pytest.raises(FileError, match="line 1"):
        read_documents(rows)
    text.write_text("\n\n", encoding="utf-8")
    with pytest.raises(UsageError, match="no document"):
        read_documents(text)
    with pytest.raises(FileError, match="cannot be read"):
        read_documents(tmp_path / "none.txt")
