"""The references that are written from the code: all options, and the settings of methods."""

from __future__ import annotations

from pathlib import Path

import pytest

import options_report
import settings_report

DOCS = Path(__file__).parents[2] / "docs"
needs_docs = pytest.mark.skipif(not DOCS.exists(), reason="needs the repository")


@needs_docs
def test_the_page_is_that_of_the_options() -> None:
    """Guards the documentation of options, which is derived from them as everything else is."""
    written = (DOCS / "options.md").read_text("utf-8")
    assert written == options_report.page(), "run `python benchmarks/options_report.py > docs/options.md`"


@needs_docs
def test_the_page_is_that_of_the_settings_of_methods() -> None:
    """Guards the documentation of settings against methods whose settings are added or changed."""
    written = (DOCS / "method-settings.md").read_text("utf-8")
    assert written == settings_report.page(), "run `python benchmarks/settings_report.py > docs/method-settings.md`"
