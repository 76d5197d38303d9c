"""The page of a replay."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

import pytest

from markup import Balance
from scripted import Scripted, recording
from speculant import __version__
from speculant.bench.replay.metrics import run_metrics
from speculant.bench.replay.player import replay
from speculant.bench.report.excerpts import ExcerptToken, last_excerpt
from speculant.bench.report.replay_page import headline, replay_page, short_names
from speculant.core.tree import DraftTree
from speculant.drafters.none import NoDrafter

CREATED = datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc)


@pytest.fixture(scope="module")
def replayed() -> tuple[list[dict[str, Any]], dict[tuple[str, str], list[ExcerptToken]]]:
    """Return rows and excerpts of two files and two methods."""
    recordings = [recording([4, 5, 6], "x"), recording([4, 4], "y", e=[2, 1])]
    rows, excerpts = [], {}
    for file in ("model-<a>", "model-b"):
        for method, drafter in (("none", NoDrafter()), ("m&m", Scripted(DraftTree.from_paths([[4, 5]], [0.5])))):
            result = replay(drafter, recordings, nodes=4)
            rows.append(run_metrics(file, method, 4, result))
            excerpts[file, method] = last_excerpt(result, recordings)
    return rows, excerpts


def test_the_page_is_complete_and_self_contained(replayed: Any) -> None:
    """Well-formed, with a table row per run, charts and excerpts, names escaped, and no address to load."""
    text = replay_page(*replayed, ["A note."], created=CREATED)
    reader = Balance()
    reader.feed(text)
    assert reader.open == []
    assert reader.counts["tr"] == 5
    assert reader.counts["svg"] == 1 + 2 * 4
    assert reader.counts["details"] == 4
    assert "model-&lt;a&gt;" in text
    assert "m&amp;m" in text
    assert "A note." in text
    assert not re.search(r"https?:|src=|href=\"[^#]|url\([^#]|@import|<script", text)


def test_the_order_of_the_page(replayed: Any) -> None:
    """The result is the heading; then version and date, the coloured text of the best method, the table, charts."""
    text = replay_page(*replayed, [], created=CREATED)
    parts = ["m&amp;m: 2.50 tokens per target pass over 2 files</h1>", f"version {__version__}, 2026-01-02 03:04 UTC"]
    parts += ['class="drafted', "<table>", "<svg", "where the text came from"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_token_ids_are_explained(replayed: Any) -> None:
    """Without a tokenizer the page says how to get text."""
    assert "--tokenizer" in replay_page(*replayed, [], token_ids=True)
    assert "--tokenizer" not in replay_page(*replayed, [])


def test_the_headline_prefers_the_expected_speedup(replayed: Any) -> None:
    """Where passes have a cost, the best method is the fastest, not the one with the most accepted tokens."""
    rows = [row | {"speedup": 1.5 if row["method"] == "none" else 0.9} for row in replayed[0]]
    assert headline(rows) == "none: 1.50x speed-up expected over 2 files, 1.00 tokens per target pass"


def test_a_page_of_recorded_acceptance_only() -> None:
    """A file without excerpts, categories or estimates still has its charts."""
    result = replay(NoDrafter(), [recording([4])], nodes=0)
    text = replay_page([run_metrics("f", "recorded:e", 0, result)], {}, [])
    assert text.count("<svg") == 4
    assert "Where the text came from" not in text


def test_short_names() -> None:
    """What all names share, up to a dash, is left out."""
    assert short_names(["m-a", "m-b"]) == ["a", "b"]
    assert short_names(["m-a"]) == ["m-a"] or short_names(["m-a"]) == ["a"]
