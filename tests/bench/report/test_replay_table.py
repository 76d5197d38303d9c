"""The table of a replay."""

from __future__ import annotations

from typing import Any

from speculant.bench.report.replay_table import HEADINGS, SPEEDUP, replay_table, tell_apart

UNKNOWN = {"mean": None, "p50": None, "p99": None}


def row(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"file": "f", "method": "m", "tokens": 10, "rounds": 5, "mat": 2.0, "nodes_per_round": 3.25}
    found |= {"draft_us": {"mean": 50.4, "p50": 49, "p99": 99}, "learn_us": {"per_token": 1.25}, "speedup": None}
    found |= {"shape": "tree", "nodes": 64}
    return found | {"memory_bytes": 2_000_000, "ece": 0.01, "categories": []} | changes


def test_cells() -> None:
    """Figures are under their headings, and what is unknown is a dash."""
    unknown = {"nodes_per_round": None, "draft_us": UNKNOWN, "learn_us": None, "memory_bytes": None, "ece": None}
    headings, known, dashes = replay_table([row(), row(**unknown)])
    assert headings == HEADINGS
    assert known == ("f", "m", "tree of 64", "10", "5", "2.000", "3.2", "50", "49", "99", "1.2", "2.0", "0.010")
    assert dashes[6:] == ("-",) * 7


def test_forms_of_drafts_are_told_apart() -> None:
    """A chart of several forms names them; a single form would only lengthen the names."""
    rows = [row(), row(shape="chain", nodes=20), row(method="e", shape="chain", nodes=20)]
    assert [each["method"] for each in tell_apart(rows)] == ["m, tree of 64", "m, chain of 20", "e"]


def test_speed_up_has_a_column_where_there_is_one() -> None:
    """Without a step-cost curve there is nothing to show."""
    lines = replay_table([row(speedup=1.5), row()])
    assert [line[-1] for line in lines] == [SPEEDUP, "1.50", "-"]


def test_categories_are_shown_where_there_are_several() -> None:
    """A single category would repeat the row."""
    part = {key: value for key, value in row().items() if key not in ("file", "method", "shape", "nodes")}
    one, two = part | {"category": "x"}, part | {"category": "y"}
    assert len(replay_table([row(categories=[one])], categories=True)) == 2
    lines = replay_table([row(categories=[one, two])], categories=True)
    assert [line[0] for line in lines[2:]] == ["  x", "  y"]
    assert len(replay_table([row(categories=[one, two])])) == 2
