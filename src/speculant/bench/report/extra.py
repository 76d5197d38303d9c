"""The optional packages that pages are made with."""

from __future__ import annotations

from importlib.util import find_spec

from speculant.core.errors import UnsupportedError


def check_extra() -> None:
    """Check that pages can be written, before anything is measured.

    Raises:
        UnsupportedError: Jinja2 or matplotlib is not installed.
    """
    if any(find_spec(name) is None for name in ("jinja2", "matplotlib")):
        raise missing_extra()


def missing_extra() -> UnsupportedError:
    """Return the error that names the missing extra."""
    return UnsupportedError("pages with charts need Jinja2 and matplotlib: pip install 'speculant[bench]'")
