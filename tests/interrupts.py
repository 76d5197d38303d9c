"""Ctrl-C at a chosen line of Speculant's files."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import speculant

SOURCES = str(Path(speculant.__file__).parent)


def interrupted(work: Callable[[], Any], line: int) -> bool:
    """Do some work, with a Ctrl-C at so many lines of Speculant's files into it; return whether it got there.

    It never comes at a `with` line: tracing visits that once more at the end of the block, before the lock is released,
    where Python itself takes no signals.
    """
    left = line

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        if event == "line":
            left -= 1
            here = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if left <= 0 and not here.lstrip().startswith("with "):
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
