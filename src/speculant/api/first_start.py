"""A first start compiles kernels in several processes at once.

numba compiles with one thread, up to a minute in all, and keeps the code in a cache that processes share. So where that
cache is empty, further processes compile what is needed last, while this one compiles what it needs first.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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

    Nothing depends on these processes: what they have not compiled by then, the body compiles itself, and those that
    still run at its end are killed. There is one for each further thread that numba may use (NUMBA_NUM_THREADS).

    Args:
        warm_ups: functions without parameters, as "module:name".
    """
    count = min(len(warm_ups), _processes()) if warm_ups else 0
    helpers = [_start(warm_ups[first::count]) for first in range(count)]
    try:
        yield
    finally:
        for helper in helpers:
            helper.kill()
            helper.wait()


def _processes() -> int:
    """Return the number of processes to start; 0 if kernels come from the cache or this is no Python interpreter."""
    from numba import config

    if config.NUMBA_NUM_THREADS < 2 or not Path(sys.executable or "").name.startswith("python"):
        return 0
    return config.NUMBA_NUM_THREADS - 1 if _first() else 0


def _first() -> bool:
    """Return whether kernels have to be compiled, as the smallest one had to be."""
    import numpy as np

    from speculant.sizing.division import limit_growth

    limit_growth(np.ones(2), 0, 1.0)
    return bool(limit_growth.stats.cache_misses)


def _start(warm_ups: Sequence[str]) -> subprocess.Popen[bytes]:
    lines = [f"import sys; sys.path[:] = {sys.path!r}"]  # or modules in the current folder would come first
    lines += [f"import {module}; {module}.{name}()" for module, name in (each.split(":") for each in warm_ups)]
    return subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
