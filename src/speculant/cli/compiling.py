"""Announces that kernels are being compiled: otherwise nothing would explain a slow first start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from speculant.cli.heartbeat import heartbeat
from speculant.cli.terminal import count_noun, say

NOTICE = "compiling the drafter's kernels: once, up to a minute; later starts load them from the cache."


@contextmanager
def compilation_announced() -> Iterator[None]:
    """Print a notice if kernels have to be compiled in this context, then from time to time the current kernel.

    numba reports what it compiles but not what it loads from its cache, so a fast start stays silent.
    """
    from numba.core import event

    with ExitStack() as ending:

        class Notice(event.Listener):  # type: ignore[misc]  # numba has no types
            kernels: tuple[str, ...] = ()
            running = 0  # a kernel may compile others that it calls

            def on_start(self, event: Any) -> None:
                self.running += 1
                kernel = event.data["dispatcher"].py_func
                if kernel.__module__.startswith("numba."):  # part of a kernel
                    return
                self.kernels += (kernel.__name__,)
                if len(self.kernels) == 1:
                    say(NOTICE)
                    ending.enter_context(heartbeat(self.line))

            def on_end(self, event: Any) -> None:
                self.running -= 1

            def line(self, _seconds: float) -> str | None:
                if not self.running:
                    return None
                return f"compiling {self.kernels[-1]}: {count_noun(len(self.kernels), 'kernel')} so far"

        with event.install_listener("numba:compile", Notice()):
            yield
