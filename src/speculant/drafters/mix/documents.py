"""The documents of a base in two files: all token ids in sequence, and one record per document.

Contexts are counted independently (base_builder.py), but a network is trained on whole texts (score_training.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speculant.core.tree import Array

_DOCUMENT = np.dtype([("length", np.int64), ("weight", np.float32)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Documents:
    """D documents with T tokens in total.

    Attributes:
        ids: Int32[T], possibly mapped.
        lengths: Int64[D].
        weights: Float32[D], how many times each document counts.
    """

    ids: Array
    lengths: Array
    weights: Array


class DocumentFiles:
    """Writes documents; every method may raise OSError."""

    def __init__(self, folder: Path, sizes: Sequence[int] = (0, 0)) -> None:
        """Resume with files of these sizes; anything beyond them is dropped.

        Raises:
            EOFError: a file is shorter than its size.
        """
        self._paths = folder / "ids", folder / "documents"
        self._ids: list[Array] = []
        self._documents: list[tuple[int, float]] = []
        for path, size in zip(self._paths, sizes, strict=True):
            with path.open("ab") as file:
                if file.tell() < size:
                    raise EOFError
                file.truncate(size)

    def add(self, ids: Array, weight: float) -> None:
        """Add a document, Int32[T], which is buffered until `flush`."""
        self._ids.append(ids)
        self._documents.append((len(ids), weight))

    def flush(self) -> None:
        """Write the buffered documents."""
        if not self._ids:
            return
        for path, array in zip(
            self._paths, (np.concatenate(self._ids), np.array(self._documents, _DOCUMENT)), strict=True
        ):
            with path.open("ab") as file:
                file.write(array.tobytes())
        self._ids, self._documents = [], []

    def sizes(self) -> list[int]:
        """Return the sizes of both files, in bytes."""
        return [path.stat().st_size for path in self._paths]

    def read(self) -> Documents:
        """Return the written documents, of which there must be at least one; the ids are mapped."""
        ids, documents = self._paths
        records = np.fromfile(documents, _DOCUMENT)
        return Documents(
            ids=np.memmap(ids, np.int32, "r"),
            lengths=np.ascontiguousarray(records["length"]),
            weights=np.ascontiguousarray(records["weight"]),
        )
