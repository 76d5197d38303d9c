"""What templates get: tables with highlighted cells, and the packages they need."""

from __future__ import annotations

import sys
from importlib import util

import pytest

from speculant.bench.report.extra import check_extra
from speculant.bench.report.render import render, series_colors, table
from speculant.core.errors import UnsupportedError


def test_the_largest_value_of_each_group_is_highlighted() -> None:
    """Ties all are, cells without a value are not, and a row alone has nothing to compare with."""
    lines = [("file", "MAT"), ("a", "1.0"), ("a", "2.0"), ("a", "2.0"), ("a", "-"), ("b", "3.0")]
    assert table(lines, name_columns=1, highlight=["MAT"]).highlighted == {(1, 1), (2, 1)}
    assert table(lines, name_columns=1).highlighted == frozenset()


def test_colors_are_numbered_by_appearance() -> None:
    """A method has the same colour in every chart of a page, also beyond the palette."""
    assert series_colors(["a", "b", "a", "c"]) == {"a": 0, "b": 1, "c": 2}
    assert max(series_colors([str(i) for i in range(20)]).values()) == 11


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is noticed before anything is measured, and the message names what to install."""
    check_extra()
    found = util.find_spec
    with monkeypatch.context() as patched:
        patched.setattr(
            "speculant.bench.report.extra.find_spec", lambda name: (name != "matplotlib" and found(name)) or None
        )
        with pytest.raises(UnsupportedError, match="pip install jinja2 matplotlib"):
            check_extra()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UnsupportedError, match="pip install jinja2 matplotlib"):
        render("replay.html.j2", {})
