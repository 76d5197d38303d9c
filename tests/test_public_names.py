"""The names users import, and what importing them costs."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

import speculant

NAMES = [
    "Batch",
    "BatchError",
    "Constraint",
    "DraftTree",
    "Generation",
    "Piece",
    "PrefixCache",
    "Result",
    "Source",
    "SpeculantError",
    "Speculator",
    "Stats",
]
LIGHT = (
    "speculant.registry, speculant.core.errors, speculant.api.detokenizer, speculant.core.drafter, "
    "speculant.verifiers.sample_then_follow"
)
HEAVY = "{'torch', 'transformers', 'numba'} & set(sys.modules)"


def test_all() -> None:
    """The public names are these, and each can be had."""
    assert sorted(speculant.__all__) == sorted([*NAMES, "__version__"])
    for name in NAMES:
        assert getattr(speculant, name).__name__ == name


def test_unknown_name() -> None:
    """A name that is not there is an AttributeError, so hasattr works."""
    with pytest.raises(AttributeError, match="Nothing"):
        _ = speculant.Nothing
    assert not hasattr(speculant, "Nothing")


def test_version() -> None:
    """The version users see is the installed package's."""
    assert speculant.__version__ == importlib.metadata.version("speculant")


@pytest.mark.parametrize(
    ("statement", "loaded"),
    [
        (f"import speculant, {LIGHT}", set()),
        ("import speculant.drafters.aded.drafter, speculant.memory.file", {"numba"}),
    ],
)
def test_imports_are_light(statement: str, loaded: set[str]) -> None:
    """`speculant --help` does not wait for torch, and drafters run in engines without it."""
    script = f"import sys; {statement}; print(sorted({HEAVY}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(sorted(loaded))


@pytest.mark.parametrize(
    ("module", "former", "name"),
    [
        ("core.drafter", "Start", "SessionRequest"),
        ("core.engine", "Needs", "RequestedOutputs"),
        ("core.engine", "NO_NEEDS", "NO_OUTPUTS"),
        ("decoding.step", "Parts", "DecodingComponents"),
    ],
)
def test_former_names_work(module: str, former: str, name: str) -> None:
    """Guards imports by the names that the changelog says still work."""
    found = importlib.import_module(f"speculant.{module}")
    with pytest.warns(DeprecationWarning, match=f"now called {name}"):
        assert getattr(found, former) is getattr(found, name)
    with pytest.raises(AttributeError, match="Nothing"):
        _ = found.Nothing
