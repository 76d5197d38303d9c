"""Replays runs in several processes; results are returned in the order of the runs.

The longest runs start first, so that the processes finish at about the same time. Concurrent processes share the
machine's caches and memory bandwidth, so times are slightly longer than alone.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from speculant.bench.replay.player import ReplayResult
from speculant.bench.replay.runs import Run
from speculant.core.errors import SpeculantError

Advance = Callable[[int], object]


def replay_runs(runs: Sequence[Run], *, jobs: int, advance: Advance = lambda _tokens: None) -> list[ReplayResult]:
    """Return the replay of every run.

    Args:
        runs: the runs to replay.
        jobs: number of processes; 1 uses the calling process only.
        advance: called with the number of replayed output tokens.

    Raises:
        SpeculantError: a run cannot be replayed, or a process was killed.
    """
    if min(jobs, len(runs)) < 2:
        return [run.replay(advance) for run in runs]
    context = get_context("spawn")  # a forked process would inherit locks that other threads hold
    processes: dict[Any, Any] = {}
    try:
        for _ in range(min(jobs, len(runs))):
            connection, remote = context.Pipe()
            processes[connection] = context.Process(target=_work, args=(remote,), daemon=True)
            processes[connection].start()
            remote.close()
        return _Dispatch(runs, advance).run(list(processes))
    finally:
        for process in processes.values():
            process.terminate()
            process.join()


class _Dispatch:
    def __init__(self, runs: Sequence[Run], advance: Advance) -> None:
        self._runs, self._advance = runs, advance
        self._waiting = sorted(range(len(runs)), key=lambda i: runs[i].tokens)  # popped from the end
        self._running: dict[Any, int] = {}
        self._results: dict[int, ReplayResult] = {}

    def run(self, connections: list[Any]) -> list[ReplayResult]:
        for connection in connections:
            self._send(connection)
        while self._running:
            for connection in wait(list(self._running)):
                self._receive(connection)
        return [self._results[i] for i in range(len(self._runs))]

    def _send(self, connection: Any) -> None:
        if not self._waiting:
            return
        self._running[connection] = self._waiting.pop()
        try:
            connection.send(self._runs[self._running[connection]])
        except OSError as error:
            raise self._make_kill_error(connection) from error

    def _receive(self, connection: Any) -> None:
        try:
            message = connection.recv()
        except (EOFError, OSError) as error:
            raise self._make_kill_error(connection) from error
        match message:
            case int(tokens):
                self._advance(tokens)
            case ReplayResult() as result:
                self._results[self._running.pop(connection)] = result
                self._send(connection)
            case SpeculantError() as refused:
                raise refused
            case text:
                raise RuntimeError(f"in a process that replays:\n{text}")

    def _make_kill_error(self, connection: Any) -> SpeculantError:
        run = self._runs[self._running[connection]]
        return SpeculantError(
            f"the process that replayed {run.method} on {run.file} was killed, perhaps for lack of memory. Lower "
            "--memory-limit, or use --jobs 1."
        )


def _work(connection: Connection) -> None:
    """Replay runs until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the parent, which terminates its children
    while True:
        try:
            run: Run = connection.recv()
        except EOFError:
            return
        try:
            connection.send(run.replay(connection.send))
        except SpeculantError as error:
            connection.send(error)
        except Exception:  # a bug: the parent shows where
            connection.send(traceback.format_exc())
