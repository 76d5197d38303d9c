"""Corpus files that a replay starts with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speculant.api.loading import load_tokenizer
from speculant.bench.replay.corpora import CorpusFile, assign, read_corpus
from speculant.core.errors import CorruptMemoryError, FileError, UsageError
from speculant.memory.file import write_memory
from speculant.memory.fingerprint import tokenizer_fingerprint


def write(path: Path, tokenizer: str, kind: str = "trigram") -> Path:
    write_memory(path, kind=kind, tokenizer=tokenizer, arrays={"a": np.zeros(1)}, facts={})
    return path


def test_ids_need_no_tokenizer(tmp_path: Path) -> None:
    """A corpus of bare ids fits bare ids."""
    for fingerprint in ("", "ids-50"):
        path = write(tmp_path / "c", fingerprint)
        assert read_corpus(path) == CorpusFile(path, "trigram", fingerprint)


def test_a_corpus_of_a_tokenizer_needs_that_tokenizer(tmp_path: Path) -> None:
    """Token ids alone do not identify their tokenizer."""
    tokenizer = load_tokenizer()
    fingerprint = tokenizer_fingerprint(tokenizer, 1)
    path = write(tmp_path / "c", fingerprint)
    with pytest.raises(UsageError, match=r"c was made with a tokenizer .*--tokenizer"):
        read_corpus(path)
    assert read_corpus(path, tokenizer).tokenizer == fingerprint


def test_what_is_no_corpus(tmp_path: Path) -> None:
    """The file is checked before anything is replayed."""
    with pytest.raises(FileError, match="there is no memory file"):
        read_corpus(tmp_path / "c")
    (tmp_path / "c").write_text("text")
    with pytest.raises(CorruptMemoryError):
        read_corpus(tmp_path / "c")


def test_each_method_gets_its_kind() -> None:
    """Methods that take no corpus start empty."""
    table = CorpusFile(Path("t"), "trigram", "")
    assert assign(["none", "aded", "peer:arctic"], [table]) == {"aded": table}
    assert assign(["none"], []) == {}


def test_what_cannot_be_used() -> None:
    """A corpus that no method takes, or a second of a kind, is refused."""
    table, other = CorpusFile(Path("t"), "trigram", ""), CorpusFile(Path("o"), "other", "")
    with pytest.raises(UsageError, match="o holds a memory of kind 'other', which none of aded, none can"):
        assign(["aded", "none"], [table, other])
    with pytest.raises(UsageError, match="same kind"):
        assign(["aded"], [table, table])
