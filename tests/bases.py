"""Small frozen bases for tests."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from speculant.drafters.mix.base import MixBase, read_base, write_base
from speculant.drafters.mix.base_builder import BaseBuilder, BuiltBase

BUDGET = 1 << 20


def built(documents: Sequence[np.ndarray], *, vocabulary: int, budget: int = BUDGET) -> BuiltBase:
    """Return a base of documents of ids."""
    with tempfile.TemporaryDirectory() as folder:
        builder = BaseBuilder(Path(folder), vocabulary=vocabulary)
        for document in documents:
            builder.add(document)
        return builder.build(budget, lambda _tokens: None)


def saved_base(
    path: Path, documents: Sequence[np.ndarray], *, vocabulary: int, tokenizer: str = "t", budget: int = BUDGET
) -> Path:
    """Write a base of documents, and return its path."""
    lines = built(documents, vocabulary=vocabulary, budget=budget).lines
    write_base(path, lines, vocabulary=vocabulary, tokenizer=tokenizer, facts={})
    return path


def opened(path: Path, documents: Sequence[np.ndarray], *, vocabulary: int) -> MixBase:
    """Return a base of documents, opened from a file."""
    return read_base(saved_base(path, documents, vocabulary=vocabulary), vocabulary=vocabulary, tokenizer="t")
