"""What a retriever must do, and how a collection of documents is read."""

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

    Which document is a query's best must depend neither on k nor on the queries beside it. Searches may be called on
    another thread than the rest, one at a time.

    Attributes:
        documents: their texts; a document's id is its place here.
    """

    documents: Sequence[str]

    def encode(self, query: str) -> Any:
        """Return a query in the form that the other methods take."""

    def search(self, queries: Sequence[Any], k: int) -> Ids:
        """Return the ids of the k best documents of each query, Int64[Q, k], the best one first."""

    def score(self, query: Any, ids: Ids) -> Floats:
        """Return by how much a query wants each of some documents, Float32[C], by the measure of `search`."""


def read_documents(path: str | Path, *, words: int = 100) -> list[str]:
    """Return the documents of a file.

    Args:
        path: .jsonl whose rows are texts or objects with "text" or "document"; of any other file, the paragraphs.
        words: paragraphs are joined, and cut, to passages of about so many words (100 in RaLMSpec and its Wikipedia).

    Raises:
        FileError: it cannot be read, or a row holds no text.
        UsageError: it holds no document.
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
    """Return passages of at most so many words; a paragraph is cut only where it is longer."""
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
