"""The notice that kernels are being compiled: once where they are, never where they are not."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from numba import njit

from speculant.cli import compiling
from speculant.cli.compiling import NOTICE, compilation_announced
from speculant.cli.terminal import say

CaptureFixture = pytest.CaptureFixture[str]
KERNEL = """
from numba import njit

@njit(cache=True)
def double(x):
    return 2 * x

assert double(4) == 8
"""


@pytest.fixture(autouse=True)
def audible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print the notice, which other tests of commands do without."""
    monkeypatch.setattr(compiling, "say", say)


def test_one_line_for_all_kernels(capsys: CaptureFixture) -> None:
    """However many are compiled, in logs too; those that are compiled already count for none."""
    first, second = njit(lambda x: x + 1), njit(lambda x: x + 2)
    with compilation_announced():
        first(1)
        second(1)
    assert capsys.readouterr().err == NOTICE + "\n"
    with compilation_announced():
        first(1)
    assert capsys.readouterr().err == ""


def test_kernels_in_the_cache_are_not_announced(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The second start is fast, and says nothing."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    for expected in (NOTICE + "\n", ""):
        with compilation_announced():
            runpy.run_path(str(tmp_path / "kernel.py"))
        assert capsys.readouterr().err == expected


def test_what_is_being_compiled_is_named(monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture) -> None:
    """A first start says what it is busy with, and no more once that is over."""

    @contextmanager
    def beats_once(describe: Callable[[float], str | None]) -> Iterator[None]:
        say(describe(0.0) or "")
        yield
        assert describe(0.0) is None

    monkeypatch.setattr(compiling, "heartbeat", beats_once)

    @njit
    def triple(x: int) -> int:
        return 3 * x

    with compilation_announced():
        triple(4)
    assert capsys.readouterr().err.splitlines() == [NOTICE, "compiling triple: 1 kernel so far"]


def test_nothing_is_said_outside(capsys: CaptureFixture) -> None:
    """What is compiled later would be said in the middle of a text."""
    with compilation_announced():
        pass
    njit(lambda x: x + 4)(1)
    assert capsys.readouterr().err == ""
