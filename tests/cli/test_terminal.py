"""Messages, estimates and bars."""

from __future__ import annotations

import gc
import sys
from itertools import islice
from threading import Event
from typing import Any

import pytest

from speculant.bench.suite.rows import ResultRow
from speculant.cli import heartbeat as heartbeat_module
from speculant.cli.bench_progress import LongRun
from speculant.cli.heartbeat import FIRST, beats
from speculant.cli.terminal import ERASE_LINE, Pace, duration, importing, print_table, progress, takes_color, waiting

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
    assert (pace.done, pace.seconds_left) == (10, None)
    clock.now = 20.0
    pace.advance(10)
    assert pace.seconds_left == pytest.approx(180.0)


def test_a_slow_start_is_no_pace() -> None:
    """Compiling before the first of many units once promised 38 minutes where 2 were left."""
    clock = Clock()
    pace = Pace(51, clock=clock)
    clock.now = 46.0
    pace.advance()
    assert pace.line("requests") == "1 of 51 requests"
    clock.now = 57.0
    assert pace.seconds_left is None  # nothing has followed yet
    pace.advance(10)
    assert pace.seconds_left == pytest.approx(40 * 1.1)
    clock.now = 46.0
    quick = Pace(1000, clock=clock)
    quick.advance()
    clock.now = 52.0
    quick.advance()
    assert quick.seconds_left is None
    clock.now = 56.0
    assert quick.seconds_left is not None


def test_lines_have_no_zero_seconds_and_no_wrong_plural() -> None:
    """Lines said "about 0 seconds left" and "1 of 1 shards"."""
    clock = Clock()
    pace = Pace(1, clock=clock)
    clock.now = 1.0
    assert pace.line("shards") == "0 of 1 shard"
    pace.advance()
    assert pace.line("shards") == "1 of 1 shard"
    rest = Pace(100, clock=clock)
    rest.advance(99)
    assert rest.line("items") == "99 of 100 items"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1, "1 second"), (45, "45 seconds"), (100, "2 minutes"), (7500, "2 hours 5 minutes"), (90_000, "25 hours")],
)
def test_durations(seconds: float, words: str) -> None:
    """In words that nobody has to divide."""
    assert duration(seconds) == words


def test_no_time_is_negative() -> None:
    """More units than were announced leave nothing to do, not less."""
    clock = Clock()
    pace = Pace(10, clock=clock)
    clock.now = 6.0
    pace.advance(12)
    assert pace.seconds_left == 0.0
    assert duration(-1.0) == "0 seconds"


def test_a_long_run_is_announced_once(capsys: CaptureFixture) -> None:
    """More than ten minutes are a reason to ask for less."""
    clock = Clock()
    warning = LongRun(100, clock=clock)
    for _ in range(3):
        clock.now += 20.0
        warning.advance(1)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: this will take about 33 minutes more, by the 2 of 100 items so far.")


def test_lines_of_a_log_say_how_far_it_is() -> None:
    """With units, and the time left once it can be told."""
    clock = Clock()
    pace = Pace(4000, clock=clock)
    assert pace.line("tokens") == "0 of 4,000 tokens"
    clock.now = 10.0
    pace.advance(1000)
    assert pace.line("tokens") == "1,000 of 4,000 tokens, about 30 seconds left"
    unknown = Pace(None, clock=clock)
    unknown.advance(2_500_000)
    assert unknown.line("bytes") == "2.5 MB"


def test_logs_are_never_silent_for_long(monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture) -> None:
    """While something takes long, lines come: the first within two seconds, later ones after a tenth of the time."""
    monkeypatch.setattr(heartbeat_module, "FIRST", FIRST)
    due = list(islice(beats(), 60))
    gaps = [after - before for before, after in zip([0.0, *due], due, strict=False)]
    assert due[0] <= 2.0
    assert all(gap <= max(2.0, 0.1 * before + 1e-9) for gap, before in zip(gaps, [0.0, *due], strict=False))
    monkeypatch.setattr(heartbeat_module, "FIRST", 0.0)
    printed = Event()
    monkeypatch.setattr("builtins.print", lambda *_, **__: printed.set())
    with waiting("loading"):
        assert printed.wait(60)


def test_imports_are_announced_at_once(monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture) -> None:
    """No other thread can print while a library is being mapped; once it is there, nothing is said."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    before = gc.get_freeze_count()
    with importing("PyTorch"):
        assert capsys.readouterr().err == "loading PyTorch ...\n"
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
    monkeypatch.setitem(sys.modules, "torch", sys)
    with importing("PyTorch"):
        pass
    assert capsys.readouterr().err == ""


def row(seconds: float, **changes: Any) -> ResultRow:
    found = dict.fromkeys(ResultRow.__dataclass_fields__, None) | {
        "task": "t",
        "method": "m",
        "temperature": 0.0,
        "batch": 1,
    }
    return ResultRow(**{**found, "seconds": seconds, **changes})


def test_bars_are_for_terminals(capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets nothing of what takes no time, a terminal a bar with the rate and status lines that vanish."""
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
    assert not takes_color(sys.stdout)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert takes_color(sys.stdout)
    monkeypatch.setenv("TERM", "dumb")
    assert not takes_color(sys.stdout)
