"""Text embeddings from a sentence-transformers model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from speculant.core.errors import ModelNotFoundError, UnsupportedError
from speculant.retrieval.retriever import Floats


class TextEncoder:
    """Turns texts into unit vectors, using the model's own prompts for queries and documents."""

    def __init__(self, name: str) -> None:
        """Load a model from a folder or the hub.

        Raises:
            UnsupportedError: sentence-transformers is not installed.
            ModelNotFoundError: the model cannot be loaded.
        """
        try:
            from sentence_transformers import SentenceTransformer
        except ModuleNotFoundError as error:
            raise UnsupportedError(
                "dense retrieval needs the package sentence-transformers: pip install 'speculant[rag]'."
            ) from error
        try:
            self._model: Any = SentenceTransformer(name)
        except (OSError, ValueError) as error:
            raise ModelNotFoundError(f"the encoder {name} cannot be loaded: {error}") from error

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """Return the vectors of queries, Float32[N, D]."""
        return np.asarray(self._model.encode_query(list(texts), normalize_embeddings=True), np.float32)

    def encode_documents(self, texts: Sequence[str]) -> Floats:
        """Return the vectors of documents, Float32[N, D]."""
        return np.asarray(self._model.encode_document(list(texts), normalize_embeddings=True), np.float32)
