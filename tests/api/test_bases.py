"""`base=`: named bases, those of the user's folder, and none; the text never depends on them."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from bases import saved_base
from models import tiny_model
from speculant import Speculator
from speculant.api.loading import load_model
from speculant.core.errors import CorruptMemoryError, FileError, UnsupportedError
from speculant.memory.bases import VARIABLE, find_bundled_base

PROMPT = [1, 5, 9, 5]


def texts(vocabulary: int) -> list[np.ndarray]:
    """Return a corpus of ids."""
    return [np.random.default_rng(0).integers(0, vocabulary, 2000).astype(np.int32)]


def test_a_named_base_is_used_and_changes_no_text(tmp_path: Path) -> None:
    """The drafter holds it, and greedy text is that of plain decoding; with several, and with None, too."""
    model = tiny_model("llama")
    size = model.config.vocab_size
    path = saved_base(tmp_path / "b", texts(size), vocabulary=size, tokenizer=f"ids-{size}")
    plain = Speculator.from_transformers(model, method="none").generate(PROMPT, max_new_tokens=24).ids
    for base, count in ((path, 1), (str(path), 1), ([path, path], 2), (None, 0), ((), 0)):
        speculator = Speculator.from_transformers(model, base=base, nodes=8)
        assert len(speculator.drafter.bases) == count
        assert speculator.generate(PROMPT, max_new_tokens=24).ids == plain


def test_bases_of_the_folder_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of the tokenizer, up to three, for methods that take any; others and damaged ones are left out."""
    model = tiny_model("llama")
    size = model.config.vocab_size
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    for name in "abcd":
        saved_base(tmp_path / f"{name}.speculant", texts(size), vocabulary=size, tokenizer=f"ids-{size}")
    saved_base(tmp_path / "other.speculant", texts(size), vocabulary=size, tokenizer="other")
    (tmp_path / "damaged.speculant").write_bytes(b"SPCLNT\r\n" + bytes(100))
    with caplog.at_level(logging.WARNING):
        found = Speculator.from_transformers(model, nodes=8).drafter.bases
    assert [base.path.stem for base in found] == ["a", "b", "c"]
    assert "more than 3 bases" in caplog.text
    assert "damaged" in caplog.text
    assert Speculator.from_transformers(model, base=None, nodes=8).drafter.bases == ()
    Speculator.from_transformers(model, method="lookup", nodes=8)


def test_bases_that_cannot_be_used(tmp_path: Path) -> None:
    """A named one must be used, or is an error that says why."""
    model = tiny_model("llama")
    with pytest.raises(FileError, match="there is no base"):
        Speculator.from_transformers(model, base=tmp_path / "missing")
    with pytest.raises(UnsupportedError, match=r"'suffix' takes no base.*mix"):
        Speculator.from_transformers(model, method="suffix", base=tmp_path / "missing")


def test_the_bundled_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the first request to the bundled model: its base is used by default, and has a name; no other model's."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    model, tokenizer = load_model(None)
    for base, expected in (("auto", [find_bundled_base()]), ("bundled", [find_bundled_base()]), (None, [])):
        speculator = Speculator.from_transformers(model, tokenizer, base=base, nodes=8)
        assert [each.path for each in speculator.bases] == expected
    assert Speculator.from_transformers(tiny_model("llama"), nodes=8).bases == ()
    (tmp_path / "bundled").write_text("no base")
    with pytest.raises(CorruptMemoryError):
        Speculator.from_transformers(model, tokenizer, base="bundled", nodes=8)
