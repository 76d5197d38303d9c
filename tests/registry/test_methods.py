"""The table of methods: what it promises is there and behaves as its columns say."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from speculant.cli.settings import build_settings
from speculant.core.errors import UnknownMethodError, UsageError
from speculant.core.references import load_object
from speculant.registry import METHODS, BuildContext, build_drafter, default_method, find_method


@pytest.mark.parametrize("name", METHODS)
def test_columns(name: str) -> None:
    """Lines are keyed by their name, say whether they are exact, and name their source."""
    method = find_method(name)
    assert method.name == name
    assert method.exactness == "lossless" or method.exactness.startswith("(lossy)")
    assert name == "none" or "arXiv" in method.source or "vllm-project/" in method.source


@pytest.mark.parametrize("name", METHODS)
def test_builders_pass_what_a_class_takes(name: str) -> None:
    """Guards the rows: builder, settings and flags are those of the drafter's constructor, and none is left out."""
    method, given = METHODS[name], dict[str, Any]()
    kind = load_object(method.drafter)
    parameters = inspect.signature(kind).parameters
    expected = [each for each in parameters if each not in ("args", "kwargs")]  # a class without a constructor

    def record(*positional: Any, **named: Any) -> Any:
        given.update(named, **dict(zip(expected, positional, strict=False)))

    method.builder(record, BuildContext())
    assert set(given) == set(expected)
    hints = get_type_hints(kind.__init__) if "settings" in expected else {}
    assert method.settings_class() in (get_args(hints["settings"])[0] if hints else None,)
    assert method.takes_draft_model == ("open_cache" in expected)
    assert method.takes_bases == ("bases" in expected)
    assert method.takes_layers == ("layers" in expected)
    assert method.takes_sublayers == ("whole_layers" in expected)
    assert method.takes_rows == ("whole_cache" in expected)
    assert bool(method.heads) == ("head" in expected)


class Named:
    """A drafter of a user's own, which takes parts of the context by name."""

    needs = open = propose = None

    def __init__(self, vocabulary: int, *, tokenizer: str = "", other: int = 3) -> None:
        self.given = vocabulary, tokenizer, other


class Loading(Named):
    """Another, which starts from a file."""

    def load(self, path: Path) -> None:
        raise NotImplementedError


class Demanding(Named):
    """Another, which needs what no context has."""

    def __init__(self, wanted: int) -> None:
        super().__init__(wanted)


def test_own_drafters_take_fields_of_the_context_by_name() -> None:
    """Guards drafters of users: constructors are given what they take by name, and nothing else is asked of them."""
    method = find_method(f"{__name__}:Named")
    assert not any((method.takes_draft_model, method.takes_bases, method.keeps_memory, method.loads_memory))
    loading = find_method(f"{__name__}:Loading")
    assert (loading.keeps_memory, loading.loads_memory) == (False, True)
    given = list[Any]()

    class Recording(Named):
        def __init__(self, vocabulary: int, *, tokenizer: str = "") -> None:
            given.append((vocabulary, tokenizer))
            raise ValueError("made")

    with pytest.raises(ValueError, match="made"):
        method.builder(Recording, BuildContext(vocabulary=7, tokenizer="t"))
    assert given == [(7, "t")]
    with pytest.raises(UsageError, match="parameter 'wanted' is unknown"):
        build_drafter(f"{__name__}:Demanding", BuildContext())
    with pytest.raises(UsageError, match="has no settings"):
        build_drafter(f"{__name__}:Named", BuildContext(settings={"a": 1}))


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
    """A draft model drafts; a head is united with `mix` but for drawn tokens, its own settings, and while it learns."""
    assert default_method() == default_method(online=True) == "mix"
    assert default_method(draft_model=True) == "draft-model"
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


def test_settings_by_their_earlier_names(caplog: pytest.LogCaptureFixture) -> None:
    """Guards scripts of earlier versions: what a setting was called is understood, and its new name told."""
    settings = find_method("suffix").read_settings({"least_probability": 0.1, "most_nodes": 8})
    assert (settings.min_probability, settings.max_nodes) == (0.1, 8)
    assert "the setting most_nodes is now called max_nodes" in caplog.text
    assert build_settings(find_method("eagle2"), ["least=0.2"]).min_probability == 0.2
    assert find_method("mix").read_settings({"echo_memory": 12}).top_k_memory == 12
