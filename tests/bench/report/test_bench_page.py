"""The table and the page of a benchmark."""

from __future__ import annotations

import re
from datetime import datetime, timezone

import pytest

from benches import row
from markup import Balance
from speculant import __version__
from speculant.bench.report.bench_page import bench_page, headline
from speculant.bench.report.bench_table import bench_table, divergence_sentences, legend, markdown
from speculant.bench.report.summary import summary
from speculant.bench.suite.rows import Divergence

CREATED = datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc)
DRAFTED = {"rounds": 3, "offered_by_depth": [3, 2], "accepted_by_depth": [3, 1], "seconds": 2.5}
ROWS = [
    row(method, task=task, category=category, identical=method != "m&m", divergence=divergence, **more)
    for task in ("<a>", "b")
    for category in ("x", "y")
    for method, divergence, more in (("none", None, {}), ("m&m", Divergence(3, 0.25, True), DRAFTED))
]


@pytest.fixture(scope="module")
def page() -> str:
    """Return the page of two tasks."""
    return bench_page(
        summary(ROWS),
        labels=["forced", "inflated"],
        notes=["A note."],
        warnings=["A warning."],
        environment={"cpu": "c", "gpus": []},
        created=CREATED,
    )


def test_the_table() -> None:
    """A line per task and method, of one width; a spread only where there are several trials."""
    lines = bench_table(summary(ROWS))
    assert [line[:2] for line in lines[1:]] == [(t, m) for t in ("<a>", "b", "overall") for m in ("none", "m&m")]
    assert {len(line) for line in lines} == {12}
    assert lines[1][7] == "2/2"
    assert lines[2][7] == "0/2"
    again = [row("none", trial=trial) for trial in range(2)]
    assert {len(line) for line in bench_table(summary(again))} == {14}
    assert bench_table(summary([row("none"), row("none", temperature=1.0)]))[2][0] == "t, T=1"
    assert markdown(lines).splitlines()[1].startswith("| --- | --- | ---: |")


def test_the_legend_is_of_the_columns_that_are_shown() -> None:
    """Guards against explanations of columns that are left out, such as those of batches."""
    alone, batched = (bench_table(summary([row("none"), row("none", batch=size)])) for size in (1, 2))
    assert "MAT: mean" in legend(alone)
    assert "over one" not in legend(alone)
    assert "spread" not in legend(alone)
    assert "over one: tokens/s" in legend(batched)


def test_divergences_are_listed() -> None:
    """A sentence for each task and method that differed, none for the sum of the tasks."""
    found = divergence_sentences(summary(ROWS))
    assert found[0] == (
        "<a>, m&m: 2 of 2 outputs differ from plain decoding's, first at token 3; 2 of them at a near-tie, the widest "
        "by 0.25."
    )
    assert len(found) == 2


def test_the_page_is_complete_and_self_contained(page: str) -> None:
    """Well-formed, names escaped, charts for every task, and no address to load."""
    reader = Balance()
    reader.feed(page)
    assert reader.open == []
    assert reader.counts["tr"] == 7
    assert reader.counts["svg"] == 4 + 3 * 3
    assert "&lt;a&gt;" in page
    assert "A note." in page
    assert "gpus none" in page
    assert not re.search(r"https?:|src=|href=\"[^#]|url\([^#]|@import|<script", page)


def test_the_order_of_the_page(page: str) -> None:
    """The result is the heading, with its labels; then version and date, warnings, the table and the charts."""
    parts = ["<h1>m&amp;m: 2.00x plain decoding on all tasks, MAT 3.00", ">forced</span>", ">inflated</span>"]
    parts += [f"version {__version__}, 2026-01-02 03:04 UTC", "none 2.0, m&amp;m 4.0", "0 of 4", "A warning."]
    parts += ["<b>4.00</b>", "<svg", "<h2>overall</h2>", "A note."]
    places = [page.index(part) for part in parts]
    assert places == sorted(places)


def test_the_headline_without_drafts() -> None:
    """Plain decoding alone has a speed and no speed-up."""
    assert headline(summary([row("none")])) == "none: 2.0 tokens/s on t"


def test_the_headline_shows_spread_and_doubt() -> None:
    """A page is not titled by a speed-up beyond what drafts can gain, without saying so."""
    plain, drafted = ([row(name, trial=i, seconds=s) for i in range(3)] for name, s in (("none", 5.0), ("mix", 2.5)))
    rows = summary([*plain, *drafted])
    assert headline(rows) == (
        "mix: 2.00x plain decoding on t (2.00x to 2.00x over 3 trials), MAT 1.00; not to be relied on, see the warning"
    )
