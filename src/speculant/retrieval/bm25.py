"""Sparse retrieval: BM25 with the package bm25s."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from speculant.core.errors import UnsupportedError, UsageError
from speculant.retrieval.retriever import Floats, Ids


class Bm25Retriever:
    """Ranks documents by BM25 (Lucene's variant, k1 = 1.5, b = 0.75). Ties are ranked by id.

    An encoded query is the ids Int64[W] of its distinct words that occur in documents.
    """

    def __init__(self, documents: Sequence[str]) -> None:
        """Index documents.

        Raises:
            UsageError: there are no documents, or none contains a word.
            UnsupportedError: bm25s is not installed.
        """
        try:
            import bm25s
        except ModuleNotFoundError as error:
            raise UnsupportedError("BM25 needs the package bm25s: pip install 'speculant[rag]'.") from error
        if not documents:
            raise UsageError("there is no document to search.")
        self.documents = documents
        self._tokenize: Callable[[Sequence[str]], Sequence[list[str]]] = partial(
            bm25s.tokenize, stopwords="en", return_ids=False, show_progress=False, allow_empty=True
        )
        words = self._tokenize(list(documents))
        if not any(words):
            raise UsageError("no document holds a word that BM25 could find; its language may need another retriever.")
        index = bm25s.BM25()
        index.index(words, show_progress=False)
        self._vocabulary: dict[str, int] = index.vocab_dict
        # For each word, the documents that contain it and its score in each, as a compressed sparse matrix.
        self._starts = np.asarray(index.scores["indptr"], np.int64)
        self._holders = np.asarray(index.scores["indices"], np.int64)
        self._scores = np.asarray(index.scores["data"], np.float32)

    def encode(self, query: str) -> Ids:
        """Return the ids of a query's words."""
        known = {self._vocabulary[word] for word in self._tokenize([query])[0] if word in self._vocabulary}
        return np.array(sorted(known), np.int64)

    def search(self, queries: Sequence[Ids], k: int) -> Ids:
        """Return the ids of the k best documents of each query, Int64[Q, k]."""
        k = min(k, len(self.documents))
        found = np.empty((len(queries), k), np.int64)
        for row, query in enumerate(queries):
            scores = np.zeros(len(self.documents), np.float32)
            for word in query:
                span = slice(self._starts[word], self._starts[word + 1])
                scores[self._holders[span]] += self._scores[span]
            found[row] = rank(scores, k)
        return found

    def score(self, query: Ids, ids: Ids) -> Floats:
        """Return the scores of some documents for a query, Float32[C]."""
        scores = np.zeros(len(ids), np.float32)
        for word in query:
            holders = self._holders[self._starts[word] : self._starts[word + 1]]
            places = np.searchsorted(holders, ids).clip(max=len(holders) - 1)
            held = holders[places] == ids
            scores[held] += self._scores[self._starts[word] + places[held]]
        return scores


def rank(scores: Floats, k: int) -> Ids:
    """Return the indices of the k highest scores in descending order; ties are ordered by index."""
    least = np.partition(scores, -k)[-k]
    above = np.flatnonzero(scores > least)
    equal = np.flatnonzero(scores == least)[: k - len(above)]
    places = np.concatenate([above, equal])
    return places[np.lexsort((places, -scores[places]))]
