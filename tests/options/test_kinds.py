"""Kinds of values: what each means, and the messages of what means nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from speculant.options import kinds
from speculant.options.drafting import AUTOMATIC, read_bases, read_settings


@pytest.mark.parametrize(
    ("given", "expected"),
    [("256MB", 256_000_000), ("256MiB", 256 << 20), ("1.5 gb", 1_500_000_000), ("1e9", 10**9), (2_000_000, 2_000_000)],
)
def test_sizes(given: Any, expected: int) -> None:
    """Guards the one meaning of a size: decimal and binary units, and bytes without one."""
    assert kinds.size().read(given) == expected


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (kinds.size(), "256", "at least 1MiB, not 256; a number without a unit is bytes: write 256MiB"),
        (kinds.size(), "lots", "must be a number of bytes, as in 2GB or 256MiB, not 'lots'"),
        (kinds.whole(1, 5, why=": it is slow"), "9", "must be at most 5, not 9: it is slow"),
        (kinds.whole(1), "1.5", "must be a whole number of 1 or more, not '1.5'"),
        (kinds.FRACTION, "0", "must be above 0 and at most 1, not 0"),
        (kinds.number(above=True), "inf", "must be a finite number above 0, not inf"),
        (kinds.seconds(), "1e9", "must be above 0 and at most 1e\\+07, not 1e9"),
        (kinds.FLAG, "perhaps", "must be true or false"),
        (kinds.choice("a", "b"), "c", "must be a or b, not 'c'"),
        (kinds.NODES, "many", "must be a whole number of 0 or more, or auto, not 'many'"),
        (kinds.PATH, 1, "must be a path, not 1"),
        (kinds.comma_separated(kinds.whole(1)), ",", "must be one or more comma-separated values"),
        (kinds.text("name one"), "", "is empty: name one"),
    ],
)
def test_messages(kind: kinds.ValueKind, given: Any, message: str) -> None:
    """Guards messages that go behind an option's name: what is wrong, and what is accepted."""
    with pytest.raises(ValueError, match=message):
        kind.read(given)


def test_what_was_read_is_read_again() -> None:
    """Guards values that come as they are, from a file's format or from Python."""
    for kind, value in (
        (kinds.size(), 10**9),
        (kinds.whole(0), 3),
        (kinds.FLAG, True),
        (kinds.FRACTION, 0.5),
        (kinds.PATH, Path("a")),
        (kinds.comma_separated(kinds.whole(1)), (1, 4)),
        (kinds.NODES, "auto"),
    ):
        assert kind.read(value) == value


@pytest.mark.parametrize(("given", "expected"), [("0", 0.0), ("1e-300", 0.0), (1e-6, 0.0), ("1e-5", 1e-5), (0.7, 0.7)])
def test_temperatures(given: Any, expected: float) -> None:
    """Guards temperatures that logits cannot be divided by: they mean greedy decoding, everywhere."""
    assert kinds.read_temperature(given) == expected


def test_bases_and_settings_of_variables() -> None:
    """Guards lists of files in both separators, the words for bases, and settings as objects and as texts."""
    assert read_bases("a.base, b.base") == read_bases(f"a.base{os.pathsep}b.base") == ("a.base", "b.base")
    assert (read_bases("auto"), read_bases("none")) == (AUTOMATIC, ())
    assert read_settings('{"row_memory": 4}') == {"row_memory": 4}
    assert read_settings("row_memory=4,cut=0.1") == ("row_memory=4", "cut=0.1")
    with pytest.raises(ValueError, match="must be an object"):
        read_settings("[1]")
