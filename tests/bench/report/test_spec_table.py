"""The page of methods by kind of task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from spec_table import TASKS, read_lines, render

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
ROWS, CORPORA = (BENCHMARKS / "results" / f"{name}.json" for name in ("spec-table", "spec-table-corpora"))


def rows(method: str, speedup: float, *, sizes: tuple[int, ...] = (3, 63), **more: Any) -> list[dict[str, Any]]:
    """Return the rows of a method in all tasks: automatic sizes, and fixed ones that are a tenth slower."""
    figures = {"requests": 30, "nodes_per_round": 1.5, "draft_us": {"p50": 80.0}, "memory_bytes": 5 << 20, **more}
    return [
        {"file": file, "method": method, "shape": "tree", "nodes": nodes, "mat": 2.0, "speedup": speed, **figures}
        for file in TASKS
        for nodes, speed in (("auto", speedup), *((size, 0.9 * speedup) for size in sizes))
    ]


def report(*parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the output of spec_corpora.py."""
    counts = {"chat": 8_000_000, "code": 4_000_000}
    builds = {"llama3": {"tokens": counts}, "llama2": {"tokens": counts}}
    return {"rows": [row for part in parts for row in part], "builds": builds}


def test_the_page_shows_the_results() -> None:
    """Guards the page against edits by hand and results that it does not show."""
    found = json.loads(ROWS.read_text())["rows"]
    corpora = json.loads(CORPORA.read_text()) if CORPORA.exists() else None
    assert render(read_lines(found), found, corpora) == (BENCHMARKS / "spec-table.md").read_text("utf-8")


def test_methods_with_a_corpus_have_a_table_of_their_own() -> None:
    """A method is told apart by its corpus, with its size and MAT, and the fastest comes first."""
    plain = rows("mix", 1.5)
    chat = rows("mix", 1.6, corpus="chat", corpus_bytes=64 << 20)
    mixed = rows("mix", 1.7, corpus="mixed", corpus_bytes=64 << 20)
    sam = rows("sam", 1.4, corpus="chat", corpus_bytes=30 << 20)
    page = render(read_lines(plain), plain, report(chat, mixed, sam))
    before, _, after = page.partition("## With a corpus")
    assert "| `mix` | tree | 1.5 | 80 | 1.35 (63) | **1.50** | 1.50 |" in before
    assert [line[:34] for line in after.splitlines() if line.startswith("| `")] == [
        "| `mix` | tree | mixed | 64 | 1.5 |"[:34],
        "| `mix` | tree | chat | 64 | 1.5 |"[:34],
        "| `sam` | tree | chat | 30 | 1.5 |"[:34],
    ]
    assert "| 80 | 1.53 (63) | 2.00 | **1.70** | 1.70 |" in after
    assert "8 million tokens" in after
    assert "12 million" in after


def test_without_corpora_there_is_no_section() -> None:
    """The table of memories that begin empty does not change."""
    plain = rows("mix", 1.5)
    assert "corpus" not in render(read_lines(plain), plain)


def test_fewer_sizes_are_named() -> None:
    """The best fixed size of fewer candidates is not passed off as that of all."""
    few = rows("peer:draftretriever", 1.1, sizes=(63,), corpus="chat", corpus_bytes=1 << 20)
    page = render([], [], report(few, rows("sam", 1.4, corpus="chat", corpus_bytes=1 << 20)))
    assert "Of ADED, its authors' code, the limits 63 were tried." in page
