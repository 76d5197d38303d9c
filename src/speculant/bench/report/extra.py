"""Checks for the packages that write pages; they are dependencies, but may be missing in stripped installations."""

from __future__ import annotations

from importlib.util import find_spec

from speculant.core.errors import UnsupportedError


def can_write_pages() -> bool:
    """Return whether Jinja2 and matplotlib are installed, without importing them."""
    return all(find_spec(name) is not None for name in ("jinja2", "matplotlib"))


def check_extra() -> None:
    """Check that pages can be written, before anything is measured.

    Raises:
        UnsupportedError: Jinja2 or matplotlib is not installed.
    """
    if not can_write_pages():
        raise missing_extra()


def missing_extra() -> UnsupportedError:
    """Return the error that names the missing packages."""
    return UnsupportedError("pages with charts need Jinja2 and matplotlib: pip install jinja2 matplotlib")
