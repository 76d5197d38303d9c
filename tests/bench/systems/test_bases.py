"""The frozen bases of a benchmark: those that are named, or an error that says why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bases import saved_base
from models import tiny_model
from speculant.bench.systems.bases import check_bases, open_target_bases, takes_bases
from speculant.bench.systems.selection import build_systems
from speculant.bench.systems.system import SpeculantSystem
from speculant.core.errors import ForeignMemoryError, UsageError
from speculant.memory.fingerprint import tokenizer_fingerprint


class Tokenizer:
    """Words of a tiny model."""

    def get_vocab(self) -> dict[str, int]:
        """Return three words."""
        return {"a": 0, "b": 1, "c": 2}


def test_bases_go_to_the_methods_that_take_any(tmp_path: Path) -> None:
    """The base is opened once, with the tokenizer's fingerprint, though systems are built without a tokenizer."""
    model = tiny_model("llama")
    size = model.config.vocab_size
    texts = [np.random.default_rng(0).integers(0, size, 2000).astype(np.int32)]
    path = saved_base(tmp_path / "b", texts, vocabulary=size, tokenizer=tokenizer_fingerprint(Tokenizer(), size))
    methods = ["none", "lookup", "mix", "hf:generate"]
    bases = open_target_bases([path], methods, model, Tokenizer())
    systems = build_systems(methods, model, nodes=4, memory_limit=1 << 20, fast=False, bases=bases)
    drafters = {each.name: each._speculator.drafter for each in systems if isinstance(each, SpeculantSystem)}
    assert drafters["mix"].bases == bases
    assert not hasattr(drafters["lookup"], "bases")
    assert [name for name in methods if takes_bases(name)] == ["mix"]
    with pytest.raises(UsageError, match="numbered anew"):
        open_target_bases([path], methods, model, Tokenizer(), mapped=True)
    other = saved_base(tmp_path / "o", texts, vocabulary=size, tokenizer="other")
    with pytest.raises(ForeignMemoryError, match="tokenizer"):
        open_target_bases([other], methods, model, Tokenizer())
    assert open_target_bases([], ["none"], model, None) == ()


def test_bases_that_nothing_would_use() -> None:
    """They are refused before anything is loaded."""
    with pytest.raises(UsageError, match="would be ignored"):
        check_bases(["none", "hf:generate", "aded"], tokenizer=True)
    with pytest.raises(UsageError, match="--config"):
        check_bases(["none", "mix"], tokenizer=False)
