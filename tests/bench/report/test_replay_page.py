"""The page of a replay."""

from __future__ import annotations

import re

from markup import Balance
from scripted import Scripted, recording
from speculant.bench.replay.metrics import run_figures
from speculant.bench.replay.player import replay
from speculant.bench.report.excerpts import last_excerpt
from speculant.bench.report.replay_page import page
from speculant.core.drafter import NoDrafter
from speculant.core.tree import DraftTree


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    """Well-formed, with a table row per run, its charts and excerpts, names escaped, and no address to load."""
    recordings = [recording([4, 5, 6], "x"), recording([4, 4], "y", e=[2, 1])]
    rows, excerpts = [], {}
    for file in ("model-<a>", "model-b"):
        for method, drafter in (("m&m", Scripted(DraftTree.from_paths([[4, 5]], [0.5]))), ("none", NoDrafter())):
            played = replay(drafter, recordings, nodes=4)
            rows.append(run_figures(file, method, 4, played))
            excerpts[file, method] = last_excerpt(played, recordings)
    text = page(rows, excerpts, ["A note."])
    reader = Balance()
    reader.feed(text)
    assert reader.open == []
    assert reader.counts["tr"] == 5
    assert reader.counts["svg"] == 1 + 2 * 4
    assert reader.counts["details"] == 4
    assert "model-&lt;a&gt;" in text
    assert "m&amp;m" in text
    assert "A note." in text
    assert not re.search(r"https?:|src=|href=|url\(|@import|<script", text)


def test_a_page_of_recorded_acceptance_only() -> None:
    """A file without excerpts, categories or estimates still has its charts."""
    played = replay(NoDrafter(), [recording([4])], nodes=0)
    text = page([run_figures("f", "none", 0, played)], {}, [])
    assert text.count("<svg") == 3
    assert "Where the text came from" not in text
