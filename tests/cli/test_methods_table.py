"""The table of methods in Markdown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from speculant.cli.main import main
from speculant.cli.methods_table import BEGIN, END, HEADINGS, markdown_table
from speculant.registry import METHODS, VERIFIERS

DOCS = Path(__file__).parents[2] / "docs" / "methods.md"
PROGRAM = """
import sys
from speculant.cli.main import main
main(["methods", "--markdown"])
sys.exit(len({"numpy", "torch", "transformers", "numba"} & set(sys.modules)))
"""


def test_the_documentation_holds_this_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Guards docs/methods.md against methods that are added or changed."""
    assert main(["methods", "--markdown"]) == 0
    text = DOCS.read_text("utf-8")
    assert text.partition(f"{BEGIN}\n\n")[2].partition(f"\n{END}")[0] == capsys.readouterr().out


def test_every_row_has_every_cell() -> None:
    """Each method with its rule, what it requires, and links to its papers."""
    lines = [line.strip("| ").split(" | ") for line in markdown_table(list(METHODS.values())).splitlines()]
    rows = {cells[0].strip("`"): dict(zip(HEADINGS, cells, strict=True)) for cells in lines[2:]}
    assert list(rows) == list(METHODS)
    for name, row in rows.items():
        rule, _, lossy = row["rule"].partition(", ")
        assert (rule.strip("`"), bool(lossy)) == (METHODS[name].verifier, VERIFIERS[METHODS[name].verifier].lossy)
    assert rows["aded"]["memory"] == "saved, corpus `trigram`"
    assert rows["draft-model"]["requires"] == "a draft model"
    assert rows["aded"]["paper"] == "Liu et al. 2024, arXiv [2407.12021](https://arxiv.org/abs/2407.12021), improved"


def test_it_is_written_without_large_imports() -> None:
    """No drafter is imported for the table, so the command answers at once."""
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.count("\n")) == (0, len(METHODS) + 2)


@pytest.mark.parametrize("argv", [["mix", "--markdown"], ["--markdown", "--json"]])
def test_other_output_is_not_mixed_in(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The table is of all methods, and no JSON."""
    assert main(["methods", *argv]) == 2
    assert "leave out NAME and --json" in capsys.readouterr().err
