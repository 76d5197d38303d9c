"""The reference of all options."""

from __future__ import annotations

from pathlib import Path

import pytest

from options_report import page

REFERENCE = Path(__file__).parents[2] / "docs/options.md"


@pytest.mark.skipif(not REFERENCE.exists(), reason="needs the repository")
def test_the_page_is_that_of_the_options() -> None:
    """Guards the documentation of options, which is derived from them as everything else is."""
    assert REFERENCE.read_text("utf-8") == page(), "run `python benchmarks/options_report.py > docs/options.md`"
