"""The table of kinds of heads: what its rows name is there, and what derives from them is whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

from speculant.core.references import load_object
from speculant.drafters.heads.checkpoints.formats import FORMATS
from speculant.drafters.heads.kind import HeadKind
from speculant.drafters.heads.kinds import HEAD_KINDS
from speculant.registry import METHODS
from speculant.training.kinds import KINDS


@pytest.mark.parametrize("kind", HEAD_KINDS, ids=lambda kind: kind.name)
def test_what_a_row_names_is_there(kind: HeadKind) -> None:
    """Guards references in strings: all of them load, and layouts name a method that drafts with the kind."""
    for layout in kind.layouts:
        assert callable(load_object(layout.matches))
        assert callable(load_object(layout.load))
        assert kind.name in METHODS[layout.method].heads
    for method in kind.methods:
        assert METHODS[method.name].drafter == method.drafter
    if kind.training is not None:
        assert all(callable(load_object(each)) for each in (kind.training.build, kind.training.save))
        assert callable(load_object(kind.training.recipe))


def test_tables_derive_from_the_rows() -> None:
    """Guards against a kind that one table has and another lacks."""
    names = [kind.name for kind in HEAD_KINDS]
    assert len(set(names)) == len(names)
    assert [each.name for each in KINDS] == [kind.name for kind in HEAD_KINDS if kind.training is not None]
    assert list(dict.fromkeys(each.kind for each in FORMATS)) == names
    assert {name for method in METHODS.values() for name in method.heads} == {*names, "*"}
    assert not METHODS["assistant"].trainable
    assert METHODS["pard"].trainable
    assert METHODS["medusa"].trainable


def test_the_table_takes_nothing_heavy() -> None:
    """Guards the time that `speculant --help` takes."""
    code = "import sys, speculant.registry; assert not {'torch', 'numpy', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
