"""A first start compiles kernels in several processes at once.

numba compiles with one thread, up to a minute in all, and keeps the code in a cache that processes share. So where that
cache is empty, further processes compile what is needed last, while this one compiles what it needs first.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from speculant.api.options import AUTO
from speculant.options.drafting import DraftingOptions

_SIZES = "speculant.sizing.policy:warm_up"
_SEARCHES = "speculant.drafters.mix.drafter:warm_up_searches"  # what `mix` compiles last


def late_warm_ups(asked: DraftingOptions) -> tuple[str, ...]:
    """Return the functions that compile what a speculator with these options needs last."""
    if asked.nodes not in (None, AUTO) or asked.method == "none":
        return ()
    return (_SIZES, _SEARCHES) if asked.method in (None, "mix") else (_SIZES,)


@contextmanager
def compiled_beside(*warm_ups: str) -> Iterator[None]:
    """Run functions in processes of their own while the body runs, unless their kernels have been compiled before.

    Nothing depends on these processes: what they have not compiled by then, the body compiles itself. They end before
    their next kernel once the body has ended, or this process. There is one for each further thread that numba may use
    (NUMBA_NUM_THREADS).

    Args:
        warm_ups: functions without parameters, as "module:name".
    """
    count = min(len(warm_ups), _processes()) if warm_ups else 0
    helpers: list[subprocess.Popen[bytes]] = []
    try:
        with suppress(OSError):  # no process can be started
            for first in range(count):
                helpers.append(_start(warm_ups[first::count]))
        yield
    finally:
        for helper in helpers:
            assert helper.stdin is not None
            helper.stdin.close()
            threading.Thread(target=helper.wait, daemon=True).start()


def help_compiling(warm_ups: Sequence[str]) -> None:
    """Run these functions until the standard input is closed; what a helping process does.

    It then ends before the next kernel, not at once: numba writes the index of a kernel before its code, and an index
    without new code would name that of an older version.
    """
    from numba.core import event

    class Stop(event.Listener):  # type: ignore[misc]  # numba has no types
        def on_start(self, _event: Any) -> None:
            if select.select([sys.stdin], [], [], 0)[0]:
                os._exit(0)

        def on_end(self, _event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Stop()):
        for module, name in (each.split(":") for each in warm_ups):
            getattr(import_module(module), name)()


def _processes() -> int:
    """Return the number of processes to start; 0 if kernels come from the cache or this is no Python interpreter."""
    from numba import config

    if config.NUMBA_NUM_THREADS < 2 or not Path(sys.executable or "").name.startswith("python"):
        return 0
    return config.NUMBA_NUM_THREADS - 1 if _is_first() else 0


def _is_first() -> bool:
    """Return whether this process has to compile kernels, as the smallest one had to be just now."""
    import numpy as np

    from speculant.sizing.division import limit_growth

    before = sum(limit_growth.stats.cache_misses.values())
    limit_growth(np.ones(2), 0, 1.0)
    return bool(sum(limit_growth.stats.cache_misses.values()) > before)


def _start(warm_ups: Sequence[str]) -> subprocess.Popen[bytes]:
    paths = [path for path in sys.path if isinstance(path, str)]  # or modules of the current folder would come first
    lines = f"import sys; sys.path[:] = {paths!r}\nfrom {__name__} import help_compiling; help_compiling({warm_ups!r})"
    return subprocess.Popen(
        [sys.executable, "-c", lines],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
