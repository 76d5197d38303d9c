"""Dense retrieval: documents and queries as vectors, compared exactly or through a graph of neighbours (faiss)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from speculant.core.errors import UnsupportedError, UsageError
from speculant.retrieval.bm25 import rank
from speculant.retrieval.retriever import Floats, Ids

Encode = Callable[[Sequence[str]], Floats]  # texts to vectors Float32[N, D]
MARGIN = 16  # candidates beyond k whose exact scores are compared


class DenseRetriever:
    """Ranks documents by the inner product of their vectors with a query's, exactly.

    One product serves all queries of a search, so that the vectors are read once. Last bits of such a product depend on
    how many queries there are; the order of the best is therefore that of sums in double precision, query by query.
    """

    def __init__(
        self,
        documents: Sequence[str],
        encode: Encode,
        *,
        encode_documents: Encode | None = None,
        vectors: Floats | None = None,
    ) -> None:
        """Encode documents.

        Args:
            documents: their texts.
            encode: turns queries into vectors Float32[N, D].
            encode_documents: turns documents into vectors, where that is done otherwise.
            vectors: those of the documents, Float32[N, D]; None to encode them.

        Raises:
            UsageError: there is no document, or the vectors do not belong to them.
        """
        if not documents:
            raise UsageError("there is no document to search.")
        self.documents, self._encode = documents, encode
        if vectors is None:
            vectors = (encode_documents or encode)(documents)
        self._vectors = np.ascontiguousarray(vectors, np.float32)
        if self._vectors.ndim != 2 or len(self._vectors) != len(documents):
            raise UsageError(f"{len(documents)} documents need as many vectors, not {list(self._vectors.shape)}.")
        if not np.isfinite(self._vectors).all():
            raise UsageError("vectors of documents hold values that are no numbers.")

    def encode(self, query: str) -> Floats:
        """Return a query's vector, Float32[D]."""
        vector: Floats = np.ascontiguousarray(self._encode([query])[0], np.float32)
        return vector

    def search(self, queries: Sequence[Floats], k: int) -> Ids:
        """Return the ids of the k best documents of each query, Int64[Q, k]."""
        k = min(k, len(self.documents))
        scores = self._vectors @ np.stack(queries, axis=1)
        return np.stack([self._order(query, rough, k) for query, rough in zip(queries, scores.T, strict=True)])

    def score(self, query: Floats, ids: Ids) -> Floats:
        """Return the inner products of a query with some documents, Float32[C]."""
        return self._exact(query, ids).astype(np.float32)

    def _order(self, query: Floats, rough: Floats, k: int) -> Ids:
        """Return the k best of the documents that have the greatest rough scores Float32[N]."""
        near = np.sort(rank(rough, min(k + MARGIN, len(rough))))
        return near[np.argsort(-self._exact(query, near), kind="stable")[:k]]

    def _exact(self, query: Floats, ids: Ids) -> NDArray[np.float64]:
        products: NDArray[np.float64] = (self._vectors[ids].astype(np.float64) * query).sum(axis=1)
        return products


class GraphRetriever(DenseRetriever):
    """Finds nearly the best documents in a graph of neighbours: HNSW (Malkov, Yashunin 2018), by the package faiss."""

    def __init__(
        self,
        documents: Sequence[str],
        encode: Encode,
        *,
        encode_documents: Encode | None = None,
        vectors: Floats | None = None,
        neighbours: int = 32,
        searched: int = 64,
    ) -> None:
        """Encode documents and build their graph.

        Args:
            documents, encode, encode_documents, vectors: as of `DenseRetriever`.
            neighbours: of each document in the graph.
            searched: candidates that a search keeps, which is how many documents it finds at most.

        Raises:
            UsageError: as of `DenseRetriever`.
            UnsupportedError: faiss is not installed.
        """
        try:
            import faiss
        except ModuleNotFoundError as error:
            raise UnsupportedError("the graph needs the package faiss-cpu: pip install 'speculant[rag]'.") from error
        super().__init__(documents, encode, encode_documents=encode_documents, vectors=vectors)
        self._searched = min(searched, len(documents))
        self._graph = faiss.IndexHNSWFlat(self._vectors.shape[1], neighbours, faiss.METRIC_INNER_PRODUCT)
        self._graph.hnsw.efSearch = self._searched
        self._graph.add(self._vectors)

    def search(self, queries: Sequence[Floats], k: int) -> Ids:
        """Return the ids of k documents near each query, Int64[Q, k], the best one first.

        Every search keeps the same number of candidates, so that the best one does not depend on k. Where the graph
        leads to too few, all documents are compared.
        """
        k = min(k, self._searched)
        found = np.asarray(self._graph.search(np.stack(queries), self._searched)[1][:, :k], np.int64)
        for row in np.flatnonzero((found < 0).any(axis=1)).tolist():
            found[row] = super().search([queries[row]], k)[0]
        return found
