"""Says that kernels are being compiled: a first start takes long, and nothing else would show why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from speculant.cli.terminal import say

NOTICE = "compiling the drafter's kernels: once, up to a minute; later starts load them from the cache."


@contextmanager
def compilation_announced() -> Iterator[None]:
    """Print a notice on a terminal, once, if kernels have to be compiled in here.

    numba announces what it compiles and not what it finds in its cache, so a start that is fast stays silent.
    """
    if not sys.stderr.isatty():
        yield
        return
    from numba.core import event

    class Notice(event.Listener):  # type: ignore[misc]  # numba has no types
        printed = False

        def on_start(self, event: Any) -> None:
            if not self.printed:
                self.printed = True
                say(NOTICE)

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Notice()):
        yield
