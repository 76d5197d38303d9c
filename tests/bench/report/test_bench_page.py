"""The table and the page of a benchmark."""

from __future__ import annotations

import re

from benches import row
from markup import Balance
from speculant.bench.report.bench_page import sheet
from speculant.bench.report.bench_table import differences, markdown, scores
from speculant.bench.report.summary import summary
from speculant.bench.suite.rows import Divergence

DRAFTED = {"rounds": 3, "offered_by_depth": [3, 2], "accepted_by_depth": [3, 1]}
ROWS = [
    row(method, task=task, category=category, identical=method != "m&m", divergence=divergence, **more)
    for task in ("<a>", "b")
    for category in ("x", "y")
    for method, divergence, more in (("none", None, {}), ("m&m", Divergence(3, 0.25, True), DRAFTED))
]


def test_the_table() -> None:
    """A line per task and method, of one width; a spread only where there are several trials."""
    lines = scores(summary(ROWS))
    assert [line[:2] for line in lines[1:]] == [(t, m) for t in ("<a>", "b", "overall") for m in ("none", "m&m")]
    assert {len(line) for line in lines} == {12}
    assert lines[1][7] == "2/2"
    assert lines[2][7] == "0/2"
    again = [row("none", trial=trial) for trial in range(2)]
    assert {len(line) for line in scores(summary(again))} == {14}
    assert scores(summary([row("none"), row("none", temperature=1.0)]))[2][0] == "t, T=1"
    assert markdown(lines).splitlines()[1].startswith("| --- | --- | ---: |")


def test_differences_are_told() -> None:
    """A sentence for each task and method that differed, none for the sum of the tasks."""
    found = differences(summary(ROWS))
    assert found[0] == (
        "<a>, m&m: 2 of 2 outputs differ from plain decoding's, first at token 3; 2 of them at a near-tie, the widest "
        "by 0.25."
    )
    assert len(found) == 2


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    """Well-formed, its labels in the heading, names escaped, charts for every task, and no address to load."""
    text = sheet(summary(ROWS), labels=["forced", "inflated"], notes=["A note."], environment={"cpu": "c", "gpus": []})
    reader = Balance()
    reader.feed(text)
    assert reader.open == []
    assert reader.counts["tr"] == 7
    assert reader.counts["svg"] == 4 + 3 * 3
    assert "<h1>What drafting brings (forced, inflated)</h1>" in text
    assert "&lt;a&gt;" in text
    assert "m&amp;m" in text
    assert "A note." in text
    assert "gpus none" in text
    assert not re.search(r"https?:|src=|href=|url\(|@import|<script", text)
