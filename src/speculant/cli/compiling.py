"""Says that kernels are being compiled, since a first start takes long for no reason that shows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from speculant.cli.output import say

NOTICE = "compiling the drafter's kernels; the first start takes about 20 seconds longer."


@contextmanager
def compiling_said() -> Iterator[None]:
    """Tell whoever sits at a terminal, once, if kernels have to be compiled in here.

    numba announces what it compiles and not what it finds in its cache, so a start that is fast stays silent.
    """
    if not sys.stderr.isatty():
        yield
        return
    from numba.core import event

    class Notice(event.Listener):  # type: ignore[misc]  # numba has no types
        said = False

        def on_start(self, event: Any) -> None:
            if not self.said:
                self.said = True
                say(NOTICE)

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Notice()):
        yield
