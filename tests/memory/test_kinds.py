"""The kinds of memory files: all of them are known, and an empty one is what a new drafter writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memories import KEPT, VOCABULARY, learned
from speculant.core.errors import ForeignMemoryError
from speculant.memory.file import Memory
from speculant.memory.kinds import KINDS, kind_of
from speculant.registry import METHODS

TEXT = [*range(10, 20), *range(10, 15)]
HELD = {
    "mix": {"tokens learned": 15, "contexts": None, "places for contexts": None},
    "aded": {"tri-grams": None, "bi-grams": None, "contexts": None},
    "maxgram": {"tokens with successors": 10, "bi-grams": 10},
    "recycling": {"tokens with successors": 10, "successors of each": 8},
    "suffix": {"documents": 1, "tokens": 14},
    "sam": {"documents": 1, "tokens": 15},
    "rest": {"corpus documents": 0, "corpus tokens": 0, "past requests": 1, "tokens of past requests": 15},
}


def test_every_method_that_saves_has_a_kind() -> None:
    """A new drafter cannot be forgotten here."""
    modules = {METHODS[name].drafter.split(":")[0] for name in KEPT}
    assert {kind.module for kind in KINDS.values()} == modules


@pytest.mark.parametrize("method", KEPT)
def test_holdings(method: str, tmp_path: Path) -> None:
    """What a memory holds is counted from what was taught."""
    memory = learned(tmp_path, method, TEXT)
    found = kind_of(memory).holdings(memory)
    assert list(found) == list(HELD[method])
    assert {name: n for name, n in HELD[method].items() if n is not None}.items() <= found.items()


@pytest.mark.parametrize("method", KEPT)
def test_an_empty_memory_is_what_a_new_drafter_writes(method: str, tmp_path: Path) -> None:
    """Nothing of the text stays, not even in what weighs the evidence, and no array is forgotten."""
    fresh, taught = learned(tmp_path, method), learned(tmp_path, method, TEXT)
    arrays, facts = kind_of(taught).empty(taught)
    assert facts == fresh.facts
    assert facts.get("vocabulary", VOCABULARY) == VOCABULARY
    assert set(arrays) == set(fresh.arrays)
    for name, array in arrays.items():
        assert array.dtype == fresh.arrays[name].dtype
        assert np.array_equal(array, fresh.arrays[name]), name


def test_an_unknown_kind_is_refused() -> None:
    """A file of a later version is told from a damaged one."""
    with pytest.raises(ForeignMemoryError, match="no memories of kind 'x'"):
        kind_of(Memory(kind="x", tokenizer="t", arrays={}, facts={}))
