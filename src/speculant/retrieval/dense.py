"""Dense retrieval: documents and queries as vectors, compared exactly or through a neighbour graph (faiss)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from speculant.core.errors import UnsupportedError, UsageError
from speculant.retrieval.bm25 import rank
from speculant.retrieval.retriever import Floats, Ids

Encode = Callable[[Sequence[str]], Floats]  # texts to vectors Float32[N, D]
MARGIN = 16  # number of candidates beyond k whose scores are recomputed in double precision


class DenseRetriever:
    """Ranks documents exactly, by the inner product of their vectors with a query's.

    One matrix product serves all queries of a search, so that the vectors are read only once. The last bits of such a
    product depend on the number of queries, so the best candidates are reordered by double-precision sums per query.
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
            documents: texts of the documents.
            encode: turns queries into vectors Float32[N, D].
            encode_documents: turns documents into vectors, if that differs from queries.
            vectors: vectors of the documents, Float32[N, D]; None to encode them.

        Raises:
            UsageError: there are no documents, or the vectors do not match them.
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
        """Return the k best documents among those with the highest approximate scores Float32[N]."""
        near = np.sort(rank(rough, min(k + MARGIN, len(rough))))
        return near[np.argsort(-self._exact(query, near), kind="stable")[:k]]

    def _exact(self, query: Floats, ids: Ids) -> NDArray[np.float64]:
        products: NDArray[np.float64] = (self._vectors[ids].astype(np.float64) * query).sum(axis=1)
        return products


class GraphRetriever(DenseRetriever):
    """Approximate search in a neighbour graph: HNSW (Malkov, Yashunin 2018), with the package faiss."""

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
            documents, encode, encode_documents, vectors: as in `DenseRetriever`.
            neighbours: number of neighbours of each document in the graph.
            searched: number of candidates that a search keeps, which is the maximum number of documents it finds.

        Raises:
            UsageError: as in `DenseRetriever`.
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
        """Return the ids of k documents near each query, Int64[Q, k], best first.

        Every search keeps the same number of candidates, so that the best one does not depend on k. If the graph yields
        too few, all documents are compared.
        """
        k = min(k, self._searched)
        found = np.asarray(self._graph.search(np.stack(queries), self._searched)[1][:, :k], np.int64)
        for row in np.flatnonzero((found < 0).any(axis=1)).tolist():
            found[row] = super().search([queries[row]], k)[0]
        return found
