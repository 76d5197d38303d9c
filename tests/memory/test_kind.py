"""The kinds of memory files: all of them are known, and an empty one is what a new drafter writes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from memories import KEPT, VOCABULARY, learned
from speculant.api.memory_kinds import find_memory_kind, methods_reading
from speculant.core.errors import ForeignMemoryError
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


@pytest.mark.parametrize("method", KEPT)
def test_every_method_that_saves_has_a_kind(method: str, tmp_path: Path) -> None:
    """The row of the registry names the kind that the method's files are of, and no two kinds share a name."""
    memory = learned(tmp_path, method, TEXT)
    reference = METHODS[method].memory
    assert reference is not None
    module, name = reference.split(":")
    assert find_memory_kind(memory.kind) is getattr(import_module(module), name)
    assert METHODS[method] in methods_reading(memory.kind)


def test_a_corpus_is_read_by_methods_that_cannot_save_too() -> None:
    """The published ADED keeps nothing, but may begin with a table."""
    assert [method.name for method in methods_reading("trigram")] == ["aded", "aded-paper"]
    assert [method.name for method in methods_reading("suffix-array")] == ["rest"]


@pytest.mark.parametrize("method", KEPT)
def test_description(method: str, tmp_path: Path) -> None:
    """The counts of a memory are those of the learned text."""
    memory = learned(tmp_path, method, TEXT)
    found = find_memory_kind(memory.kind).describe(memory)
    assert list(found) == list(HELD[method])
    assert {name: n for name, n in HELD[method].items() if n is not None}.items() <= found.items()


@pytest.mark.parametrize("method", KEPT)
def test_an_empty_memory_is_what_a_new_drafter_writes(method: str, tmp_path: Path) -> None:
    """Nothing of the text stays, not even in the mixture, and no array is forgotten."""
    fresh, full = learned(tmp_path, method), learned(tmp_path, method, TEXT)
    arrays, facts = find_memory_kind(full.kind).empty(full)
    assert facts == fresh.facts
    assert facts.get("vocabulary", VOCABULARY) == VOCABULARY
    assert set(arrays) == set(fresh.arrays)
    for name, array in arrays.items():
        assert array.dtype == fresh.arrays[name].dtype
        assert np.array_equal(array, fresh.arrays[name]), name


def test_an_unknown_kind_is_refused() -> None:
    """The error for a file of a later version is not that of a damaged one."""
    with pytest.raises(ForeignMemoryError, match="no method that reads memories of kind 'x'"):
        find_memory_kind("x")
