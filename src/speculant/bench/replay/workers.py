"""Plays runs in several processes, one run at a time each; results come in the order of the runs.

The longest runs are begun first, so that the processes end together. Times are then taken side by side: processes
share the machine's caches and its memory, which makes each a little slower than alone.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from speculant.bench.replay.player import Played
from speculant.bench.replay.runs import Run
from speculant.core.errors import SpeculantError

Advance = Callable[[int], object]


def play_runs(runs: Sequence[Run], *, jobs: int, advance: Advance = lambda _tokens: None) -> list[Played]:
    """Play every run.

    Args:
        runs: what to play.
        jobs: processes; with 1 everything happens in this one.
        advance: is told how many output tokens were played.

    Raises:
        SpeculantError: a run cannot be played, or a process was ended from outside.
    """
    if min(jobs, len(runs)) < 2:
        return [run.play(advance) for run in runs]
    context = get_context("spawn")  # a copy of this process would share locks that its threads hold
    processes: dict[Any, Any] = {}
    try:
        for _ in range(min(jobs, len(runs))):
            here, there = context.Pipe()
            processes[here] = context.Process(target=_serve, args=(there,), daemon=True)
            processes[here].start()
            there.close()
        return _Dispatch(runs, advance).through(list(processes))
    finally:
        for process in processes.values():
            process.terminate()
            process.join()


class _Dispatch:
    def __init__(self, runs: Sequence[Run], advance: Advance) -> None:
        self._runs, self._advance = runs, advance
        self._left = sorted(range(len(runs)), key=lambda i: runs[i].tokens)  # taken from the end
        self._at: dict[Any, int] = {}
        self._played: dict[int, Played] = {}

    def through(self, connections: list[Any]) -> list[Played]:
        for connection in connections:
            self._give(connection)
        while self._at:
            for connection in wait(list(self._at)):
                self._take(connection)
        return [self._played[i] for i in range(len(self._runs))]

    def _give(self, connection: Any) -> None:
        if not self._left:
            return
        self._at[connection] = self._left.pop()
        try:
            connection.send(self._runs[self._at[connection]])
        except OSError as error:
            raise self._ended(connection) from error

    def _take(self, connection: Any) -> None:
        try:
            message = connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended(connection) from error
        match message:
            case int(tokens):
                self._advance(tokens)
            case Played() as played:
                self._played[self._at.pop(connection)] = played
                self._give(connection)
            case SpeculantError() as fault:
                raise fault
            case text:
                raise RuntimeError(f"in a process that replays:\n{text}")

    def _ended(self, connection: Any) -> SpeculantError:
        run = self._runs[self._at[connection]]
        return SpeculantError(
            f"the process that played {run.method} on {run.file} was ended from outside, perhaps for want of memory. "
            "Lower --memory-limit, or play with --jobs 1."
        )


def _serve(connection: Connection) -> None:
    """Play what comes until nothing more does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends its children
    while True:
        try:
            run: Run = connection.recv()
        except EOFError:
            return
        try:
            connection.send(run.play(connection.send))
        except SpeculantError as error:
            connection.send(error)
        except Exception:  # a bug: the parent shows where
            connection.send(traceback.format_exc())
