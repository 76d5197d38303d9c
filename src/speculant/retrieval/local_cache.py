"""Cache of recently found documents, from which guesses are made."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np

from speculant.retrieval.retriever import Retriever


class LocalCache:
    """The documents that searches found most recently, ranked for a query by the retriever's own score.

    If the best document of the whole collection is among them, it is also ranked first here (RaLMSpec, section 3).
    """

    def __init__(self, retriever: Retriever, limit: int) -> None:
        """Start empty, with room for `limit` documents."""
        self._retriever, self._limit = retriever, limit
        self._ids: OrderedDict[int, None] = OrderedDict()  # least recently found first

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, ids: Iterable[int]) -> None:
        """Add documents, given best first; the least recently found ones are evicted."""
        for document in reversed(list(ids)):
            self._ids[document] = None
            self._ids.move_to_end(document)
        while len(self._ids) > self._limit:
            self._ids.popitem(last=False)

    def guess(self, query: Any) -> int:
        """Return the id of the best document for an encoded query; the cache must not be empty."""
        ids = np.array(sorted(self._ids), np.int64)
        return int(ids[np.argmax(self._retriever.score(query, ids))])
