"""The notice that kernels are being compiled: once where they are, never where they are not."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from numba import njit

from speculant.cli.compiling import NOTICE, compilation_announced

CaptureFixture = pytest.CaptureFixture[str]
KERNEL = """
from numba import njit

@njit(cache=True)
def double(x):
    return 2 * x

assert double(4) == 8
"""


def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stderr be one."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def test_one_line_for_all_kernels(monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture) -> None:
    """However many are compiled; those that are compiled already count for none."""
    at_a_terminal(monkeypatch)
    first, second = njit(lambda x: x + 1), njit(lambda x: x + 2)
    with compilation_announced():
        first(1)
        second(1)
    assert capsys.readouterr().err == NOTICE + "\n"
    with compilation_announced():
        first(1)
    assert capsys.readouterr().err == ""


def test_kernels_in_the_cache_are_not_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """The second start is fast, and says nothing."""
    at_a_terminal(monkeypatch)
    (tmp_path / "kernel.py").write_text(KERNEL)
    for expected in (NOTICE + "\n", ""):
        with compilation_announced():
            runpy.run_path(str(tmp_path / "kernel.py"))
        assert capsys.readouterr().err == expected


def test_only_a_terminal_is_told(capsys: CaptureFixture) -> None:
    """Logs and pipes have nobody who waits."""
    with compilation_announced():
        njit(lambda x: x + 3)(1)
    assert capsys.readouterr().err == ""


def test_nothing_is_said_outside(monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture) -> None:
    """What is compiled later would be said in the middle of a text."""
    at_a_terminal(monkeypatch)
    with compilation_announced():
        pass
    njit(lambda x: x + 4)(1)
    assert capsys.readouterr().err == ""
