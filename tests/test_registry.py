"""The table of methods: what it promises is there and behaves as its columns say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speculant.core.errors import UnknownMethodError, UnsupportedError
from speculant.registry import METHODS, find_method


def build(name: str) -> object:
    """Construct a method's drafter as the speculator does."""
    return METHODS[name].build(**({} if name == "none" else {"vocabulary": 50, "tokenizer": "t"}))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_drafts(name: str) -> None:
    """Each line of the table builds a drafter whose session proposes within its budget."""
    session = build(name).open(np.array([1, 2, 3, 1, 2, 3, 1, 2], np.int32), seed=3)
    assert len(session.propose(4)) <= 4
    assert len(session.propose(0)) == 0
    session.close()


@pytest.mark.parametrize("name", METHODS)
def test_memory_column(name: str, tmp_path: Path) -> None:
    """Exactly the methods that claim a memory write one."""
    drafter = build(name)
    try:
        drafter.save(tmp_path / "memory")
    except UnsupportedError:
        assert not METHODS[name].memory
    assert (tmp_path / "memory").exists() == METHODS[name].memory


@pytest.mark.parametrize("name", METHODS)
def test_columns(name: str) -> None:
    """Lines are keyed by their name, say whether they are exact, and name their source."""
    method = find_method(name)
    assert method.name == name
    assert method.exactness == "lossless" or method.exactness.startswith("(lossy)")
    assert name == "none" or "arXiv" in method.source


@pytest.mark.parametrize(("typed", "meant"), [("adde", "aded"), ("aded_paper", "aded-paper"), ("nonne", "none")])
def test_a_misspelt_name_is_answered(typed: str, meant: str) -> None:
    """The message suggests the nearest name and lists all."""
    with pytest.raises(UnknownMethodError, match=f"'{typed}'.*Did you mean '{meant}'") as caught:
        find_method(typed)
    assert all(name in str(caught.value) for name in METHODS)


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    """A wild guess would mislead; the list is enough."""
    with pytest.raises(UnknownMethodError) as caught:
        find_method("zzzzzz")
    assert "Did you mean" not in str(caught.value)


def test_the_table_is_read_only() -> None:
    """Nothing can change the table for the rest of the process."""
    with pytest.raises(TypeError):
        METHODS["new"] = METHODS["none"]
