"""How scaling is shown: a section of the page, a table and sentences."""

from __future__ import annotations

from typing import Any

from markup import Balance
from speculant.bench.report.bench_page import bench_page
from speculant.bench.report.scaling_section import scaling_section
from speculant.bench.report.scaling_table import HEADINGS, scaling_findings, scaling_markdown, scaling_table


def measured(rest: float, drafting: float) -> dict[str, Any]:
    """Return measurements in which attention grew fourfold, and other parts by these factors."""

    def round_of(prefix: int, nodes: int, rest: float, drafting: float) -> dict[str, Any]:
        seconds = {"attention_seconds": prefix / 512, "rest_seconds": rest, "draft_seconds": drafting}
        return {"prefix": prefix, "nodes": nodes, "pass_seconds": prefix / 512 + rest, "peak_bytes": None, **seconds}

    prefixes = [{"prefix": prefix, "cache_bytes": 1, "drafter_bytes": None} for prefix in (512, 2048)]
    rounds = [round_of(512, 8, 1.0, 1.0), round_of(2048, 8, rest, drafting)]
    return {"drafter": "mix", "repeats": 1, "clock": "wall", "base_bytes": None, "prefixes": prefixes, "rounds": rounds}


def test_the_findings() -> None:
    """What outgrows attention is named; what grows as fast or slower is not."""
    sentence, memory = scaling_findings(measured(3.0, 4.0))
    assert sentence.startswith("From 512 to 2048 tokens (x4.00), time with 8 nodes: pass x3.50, attention x4.00, ")
    assert sentence.endswith("rest of the pass x3.00, drafting x4.00. Nothing grew faster than attention.")
    assert memory == "From 512 to 2048 tokens (x4.00), memory: cache x1.00."
    assert scaling_findings(measured(1.0, 9.0))[0].endswith("Growing faster than attention: drafting.")


def test_the_section_and_the_markdown() -> None:
    """A row per round, charts of time and memory, and the same rows in Markdown."""
    section = scaling_section(measured(3.0, 4.0))
    assert len(section.charts) == 5
    assert len(section.table.rows) == 2
    table = scaling_markdown(measured(3.0, 4.0))[1].splitlines()
    assert len(table) == 2 + 2
    assert table[0].count("|") == 1 + len(HEADINGS)
    assert scaling_table(measured(3.0, 4.0))[1][-1] == "-"


def test_a_page_of_scaling_only() -> None:
    """Its headline is how the time of a pass grows."""
    text = bench_page([], labels=[], notes=[], environment={}, scaling=measured(3.0, 4.0))
    reader = Balance()
    reader.feed(text)
    assert reader.open == []
    assert reader.counts["svg"] == 5
    assert "<h1>A pass over 8 nodes takes 3.50x as long after 2048 tokens as after 512</h1>" in text
