"""Messages, estimates and bars."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from speculant.bench.suite.rows import Row
from speculant.cli.bench_progress import Lines
from speculant.cli.terminal import ERASE_LINE, Pace, colored, duration, print_table, progress, waiting

CaptureFixture = pytest.CaptureFixture[str]


class Clock:
    """Returns what it is set to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_pace_ignores_what_was_found() -> None:
    """Items of an earlier run take no time, so they must not shorten the estimate."""
    clock = Clock()
    pace = Pace(110, found=10, clock=clock)
    pace.advance(10)
    assert pace.seconds_left is None
    clock.now = 20.0
    pace.advance(10)
    assert pace.seconds_left == pytest.approx(180.0)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1, "1 second"), (45, "45 seconds"), (100, "2 minutes"), (7500, "2 hours 5 minutes"), (90_000, "25 hours")],
)
def test_durations(seconds: float, words: str) -> None:
    """In words that nobody has to divide."""
    assert duration(seconds) == words


def test_a_log_gets_lines_and_a_warning(capsys: CaptureFixture) -> None:
    """Off a terminal a long run shows life twice a minute; more than ten minutes are announced once."""
    clock = Clock()
    lines = Lines(100, clock=clock)
    for _ in range(3):
        clock.now += 20.0
        lines.advance(1)
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("warning: this will take about 33 minutes more, by the 1 of 100 items so far.")
    assert err[1:] == ["2 of 100 items, about 33 minutes left."]
    silent = Lines(2, clock=clock, silent=True)
    clock.now += 60.0
    silent.advance(1)
    assert capsys.readouterr().err == ""


def row(seconds: float, **changes: Any) -> Row:
    found = dict.fromkeys(Row.__dataclass_fields__, None) | {"task": "t", "method": "m", "temperature": 0.0, "batch": 1}
    return Row(**{**found, "seconds": seconds, **changes})


def test_bars_are_for_terminals(capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets nothing, a terminal a bar with the rate and status lines that vanish."""
    with progress("reading", 10, "bytes") as advance, waiting("loading"):
        advance(5)
        advance()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with waiting("loading"):
        pass
    assert capsys.readouterr().err == f"loading ...{ERASE_LINE}"
    with progress("reading", 10, "items") as advance:
        advance(5)
        advance()
    assert "reading" in capsys.readouterr().err


def test_tables_line_up(capsys: CaptureFixture) -> None:
    """Words to the left, numbers to the right, no spaces at the end, however wide."""
    print_table([("name", "x"), ("a" * 300, "1.5"), ("b", "10.25")])
    head, first, second = capsys.readouterr().out.splitlines()
    assert first == "a" * 300 + "    1.5"
    assert head == "name".ljust(300) + "      x"
    assert second == "b".ljust(300) + "  10.25"


def test_colour_depends_on_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminals have it, unless they are dumb."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert not colored(sys.stdout)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert colored(sys.stdout)
    monkeypatch.setenv("TERM", "dumb")
    assert not colored(sys.stdout)
