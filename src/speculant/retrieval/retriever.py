"""The interface of a retriever, and reading a collection of documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from speculant.core.errors import FileError, UsageError

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


class Retriever(Protocol):
    """Finds documents for queries.

    The best document of a query must depend neither on k nor on the other queries of a search. `search` may be called
    from another thread than the other methods, one call at a time.

    Attributes:
        documents: texts of the documents; a document's id is its index here.
    """

    documents: Sequence[str]

    def encode(self, query: str) -> Any:
        """Encode a query for the other methods."""

    def search(self, queries: Sequence[Any], k: int) -> Ids:
        """Return the ids of the k best documents of each query, Int64[Q, k], best first."""

    def score(self, query: Any, ids: Ids) -> Floats:
        """Return the scores of some documents for a query, Float32[C], by the measure of `search`."""


def read_documents(path: str | Path, *, words: int = 100) -> list[str]:
    """Read the documents of a file.

    Args:
        path: a .jsonl file whose rows are texts or objects with "text" or "document", or any text file, whose
            paragraphs are read.
        words: paragraphs are joined and split into passages of about this many words (100 in RaLMSpec and its
            Wikipedia).

    Raises:
        FileError: the file cannot be read, or a row has no text.
        UsageError: the file has no documents.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error
    found = _rows(path, text) if path.suffix == ".jsonl" else split_passages(text, words)
    if not found:
        raise UsageError(f"{path} holds no document.")
    return found


def split_passages(text: str, words: int) -> list[str]:
    """Split a text into passages of at most `words` words; a paragraph is split only if it is longer than that."""
    passages: list[str] = []
    held: list[str] = []
    for paragraph in text.split("\n\n"):
        split = paragraph.split()
        if len(held) + len(split) > words and held:
            passages.append(" ".join(held))
            held = []
        while len(split) > words:
            passages.append(" ".join(split[:words]))
            split = split[words:]
        held += split
    return [*passages, " ".join(held)] if held else passages


def _rows(path: Path, text: str) -> list[str]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise FileError(f"line {number} of {path} is no JSON: {error}.") from error
        document = row.get("text", row.get("document")) if isinstance(row, dict) else row
        if not isinstance(document, str) or not document.strip():
            raise FileError(f'line {number} of {path} holds no text; rows are texts or objects with "text".')
        found.append(document)
    return found
