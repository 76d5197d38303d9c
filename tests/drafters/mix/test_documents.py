"""The files of a base's documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculant.drafters.mix.documents import DocumentFiles
from tables import ids


def test_documents_come_back_as_they_were_added(tmp_path: Path) -> None:
    """Ids, lengths and weights are those of the documents, also when another continues from earlier sizes."""
    files = DocumentFiles(tmp_path)
    files.add(ids([1, 2, 3]), 1)
    files.flush()
    sizes = files.sizes()
    files.add(ids([9, 9]), 2)
    files.flush()
    later = DocumentFiles(tmp_path, sizes)
    later.add(ids([4]), 0.5)
    later.flush()
    later.flush()
    documents = later.read()
    assert documents.ids.tolist() == [1, 2, 3, 4]
    assert documents.lengths.tolist() == [3, 1]
    assert documents.weights.tolist() == [1, 0.5]


def test_files_that_are_too_short(tmp_path: Path) -> None:
    """Files that lost what they held are noticed."""
    with pytest.raises(EOFError):
        DocumentFiles(tmp_path, (4, 12))
