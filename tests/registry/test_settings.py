"""Settings as fields of dataclasses: their descriptions, and values from text."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from speculant.registry import METHODS
from speculant.registry.settings import Setting, parse_attributes, settings_of


@dataclass(frozen=True)
class Example:
    """What is parsed.

    Attributes:
        whole: a number
            on two lines.
        one, other: share a description.

    Raises:
        ValueError: never.
    """


@pytest.mark.parametrize("name", METHODS)
def test_every_method_describes_its_settings(name: str) -> None:
    """Each has a default and a description, so `speculant methods NAME` leaves nothing to guess."""
    for setting in settings_of(METHODS[name].settings_class()).values():
        assert setting.description, setting.name
        assert setting.read(str(setting.default)) == setting.default


def test_docstrings_are_read() -> None:
    """Lines are joined, names that share an entry each get it."""
    assert parse_attributes(str(Example.__doc__).replace("\n    ", "\n")) == {
        "whole": "a number on two lines.",
        "one": "share a description.",
        "other": "share a description.",
    }


def test_texts_and_switches() -> None:
    """Types that no drafter has yet."""
    assert Setting("s", bool, False).read("on") is True
    assert Setting("s", str, "").read("a=b") == "a=b"
    with pytest.raises(ValueError, match="must be true or false"):
        Setting("s", bool, False).read("maybe")
    with pytest.raises(ValueError, match="a tuple such as its default"):
        Setting("s", tuple[int, ...], (1,)).read("{[]: 1}")
