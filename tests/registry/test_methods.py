"""The table of methods: what it promises is there and behaves as its columns say."""

from __future__ import annotations

import pytest

from speculant.core.errors import UnknownMethodError
from speculant.registry import METHODS, default_method, find_method


@pytest.mark.parametrize("name", METHODS)
def test_columns(name: str) -> None:
    """Lines are keyed by their name, say whether they are exact, and name their source."""
    method = find_method(name)
    assert method.name == name
    assert method.exactness == "lossless" or method.exactness.startswith("(lossy)")
    assert name == "none" or "arXiv" in method.source or "vllm-project/" in method.source


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


def test_the_default_method() -> None:
    """A head is united with `mix`, but for rules that take drawn tokens, its own settings, and while it learns."""
    assert default_method() == default_method(online=True) == "mix"
    assert default_method("eagle2") == default_method("eagle2", verifier="sample-then-follow") == "mix-head"
    assert default_method("eagle2", verifier="speculative-sampling") == "eagle2"
    assert default_method("medusa", online=True) == "medusa"
    for settings in (("proposed=4",), {"top_k": 4}):
        assert default_method("eagle2", settings=settings) == "mix-head"
    for settings in (("tree=chain",), {"tree": "static"}):
        assert default_method("eagle2", settings=settings) == "eagle2"


def test_the_table_is_read_only() -> None:
    """Nothing can change the table for the rest of the process."""
    with pytest.raises(TypeError):
        METHODS["new"] = METHODS["none"]
