"""The table of methods in Markdown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from speculant.cli.main import main
from speculant.cli.methods_table import HEADINGS, markdown_table
from speculant.registry import METHODS, VERIFIERS

DOCS = Path(__file__).parents[2] / "docs" / "methods.md"
BEGIN = "<!-- written by `speculant methods --markdown` -->"
END = "<!-- end of the table of methods -->"
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
    """Each method with what it requires, and links to its papers."""
    table = markdown_table(list(METHODS.values())).partition("\n\n")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
    rows = {cells[0].strip("`"): dict(zip(HEADINGS, cells, strict=True)) for cells in lines[2:]}
    assert list(rows) == list(METHODS)
    assert rows["aded"]["memory"] == "saved, corpus `trigram`"
    assert rows["draft-model"]["requires"] == "a draft model"
    assert rows["aded"]["paper"] == "Liu et al. 2024, arXiv [2407.12021](https://arxiv.org/abs/2407.12021), improved"


def test_default_rules_are_those_of_every_method() -> None:
    """Guards the sentence on rules: those that differ are named with their methods, and marked if lossy."""
    sentence = markdown_table(list(METHODS.values())).partition("\n\n")[2].replace("\n", " ").rstrip(".")
    usual, *others = sentence.split("; ")
    found = dict.fromkeys(METHODS, usual.partition(": ")[2].strip("`"))
    for each in others:
        rule, _, names = each.partition(" for ")
        found |= dict.fromkeys(names.replace("`", "").split(", "), rule.replace("`", ""))
    lossy = {name: " (lossy)" if VERIFIERS[method.verifier].lossy else "" for name, method in METHODS.items()}
    assert found == {name: method.verifier + lossy[name] for name, method in METHODS.items()}


def test_it_is_written_without_large_imports() -> None:
    """No drafter is imported for the table, so the command answers at once."""
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.count("| `")) == (0, len(METHODS))


@pytest.mark.parametrize("argv", [["mix", "--markdown"], ["--markdown", "--json"]])
def test_other_output_is_not_mixed_in(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The table is of all methods, and no JSON."""
    assert main(["methods", *argv]) == 2
    assert "leave out NAME and --json" in capsys.readouterr().err
