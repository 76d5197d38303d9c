"""Chains for the requests of an engine that drafts with a head: texts, ends, bounds and faults."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from speculant.core.drafter import Budget
from speculant.integrations.head_rows import HeadRow, HeadRows
from speculant.registry import BuildContext, build_drafter

TEXT = [*range(10, 40)]


def build(**changes: Any) -> HeadRows:
    """Return rows with an empty memory."""
    drafter = build_drafter(
        "mix", BuildContext(vocabulary=500, tokenizer="", memory_limit=1 << 24, bases=(), settings=None)
    )
    return HeadRows(drafter, **{"vocabulary": 500, "max_per_step": 256, **changes})


def teach(rows: HeadRows) -> None:
    """Let requests write the text twice, and end."""
    for name in ("first", "second", "third"):
        for end in range(5, 2 * len(TEXT), 3):
            rows.step([HeadRow(name, (TEXT * 2)[:end], head=[1, 2, 3], maximum=3)])
        rows.step([HeadRow(name, TEXT * 2, ended=True)])


def test_the_memory_takes_over_where_the_head_is_wrong() -> None:
    """What the memory has seen is drafted in place of a head that was wrong all the time."""
    rows = build()
    teach(rows)
    assert rows.step([HeadRow("next", [7, *TEXT[:10]], head=[1, 2, 3], maximum=3)]) == [TEXT[10:13]]
    assert rows.step([HeadRow("unknown", [400, 401, 402], head=[1, 2, 3], maximum=3)]) == [[1, 2, 3]]
    assert rows.faults == rows.rows.faults == 0


def test_chains_are_as_long_as_the_heads() -> None:
    """A shorter memory's chain is filled with the head's tokens: batches of equal lengths run by recorded graphs."""
    rows = build()
    teach(rows)
    end = [*TEXT[-6:-1]]
    [found] = rows.step([HeadRow("next", [7, *end], head=[1, 2, 3, 4, 5], maximum=5)])
    assert len(found) == 5
    [found] = rows.step([HeadRow("next", [7, *end, 39], head=[1, 2, 3, 4, 5], maximum=2)])
    assert len(found) == 2


def test_a_row_without_room_gets_nothing() -> None:
    """Guards `maximum` of 0, and a head that drafted nothing."""
    rows = build()
    teach(rows)
    assert rows.step([HeadRow("a", [7, *TEXT[:10]], head=[1, 2, 3], maximum=0)]) == [[]]
    assert len(rows.step([HeadRow("b", [8, *TEXT[:10]], head=[], maximum=3)])[0]) == 3


def test_a_step_is_bounded() -> None:
    """The most probable tokens of all requests are kept."""
    rows = build(max_per_step=4)
    teach(rows)
    found = rows.step([HeadRow(str(i), [300 + i, *TEXT[:10]], head=[1, 2, 3], maximum=3) for i in range(3)])
    assert sum(map(len, found)) == 4
    assert found[0] == TEXT[10 : 10 + len(found[0])]


def test_another_text_under_a_known_name() -> None:
    """An engine that rewrites a request's text is not misread: it is a request like a new one."""
    rows = build()
    teach(rows)
    rows.step([HeadRow("a", [7, *TEXT[:20]], head=[1], maximum=3)])
    assert rows.step([HeadRow("a", [7, *TEXT[:10]], head=[1], maximum=1)]) == [TEXT[10:11]]
    assert rows.step([HeadRow("a", [9, 9, *TEXT[:10]], head=[1], maximum=1)]) == [TEXT[10:11]]


def test_an_ended_request_is_forgotten() -> None:
    """Guards the memory's size: texts and candidates of ended requests are dropped."""
    rows = build()
    for number in range(50):
        rows.step([HeadRow(str(number), [number, *TEXT[:10]], head=[1], maximum=1)])
        rows.step([HeadRow(str(number), [number, *TEXT[:12]], ended=True)])
    for _ in range(40):
        rows.step([])
    assert len(rows.rows) == 0
    assert not rows._requests
    rows.step([HeadRow("z", TEXT[:5], head=[1], maximum=1)])
    rows.forget()
    assert not rows._requests


def test_faults_leave_the_heads_drafts(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An error never reaches the engine, which goes on with what its head drafted; it is logged once."""
    rows = build()

    def broken(*_args: Any, **_kwargs: Any) -> Sequence[int]:
        raise RuntimeError("broken")

    monkeypatch.setattr(rows.union, "unite", broken)
    with caplog.at_level(logging.ERROR):
        for end in (5, 6):
            assert rows.step([HeadRow("a", TEXT[:end], head=[1, 2], maximum=2)]) == [[1, 2]]
    assert rows.faults == 2
    assert len(caplog.records) == 1


def test_a_failing_memory_leaves_the_heads_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory's own errors end its part in a request only."""
    rows = build()

    def broken(_sessions: Any, _budgets: Sequence[Budget]) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(type(rows.rows.drafter), "propose", staticmethod(broken))
    assert rows.step([HeadRow("a", TEXT[:5], head=[1, 2], maximum=2)]) == [[1, 2]]
