"""The site: that its reference and its notebooks are whole. `make docs` checks links and executes the notebooks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import speculant
from speculant import Speculator

DOCS = Path(__file__).parents[1] / "docs"
NOTEBOOKS = sorted(DOCS.glob("notebooks/*.ipynb"))
pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="needs the repository")


def test_every_public_name_is_in_the_reference() -> None:
    """Nothing that users import lacks a directive on a page of the reference, alone or with its module."""
    pages = "".join(page.read_text("utf-8") for page in DOCS.glob("api/*.md")).splitlines()
    documented = {line.split("::", 1)[1].strip() for line in pages if line.startswith(".. auto")}
    for name in set(speculant.__all__) - {"__version__"}:
        assert {f"speculant.{name}", getattr(speculant, name).__module__} & documented, name


def test_every_method_of_a_speculator_is_in_the_reference() -> None:
    """The page lists a speculator's members in an order for readers, and leaves out none."""
    page = (DOCS / "api/library.md").read_text("utf-8")
    listed = re.findall(r"^ +\.\. auto(?:method|property):: (\w+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted(name for name in dir(Speculator) if not name.startswith("_"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    """Notebooks stay small and comparable; the site shows what their cells print."""
    code = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
