"""Arguments that transformers' `generate` takes but does not pass on to a callable given as `custom_generate`.

They are read from its running frame: ignored without a word, a streamer would leave the thread that reads it waiting.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any

from transformers import GenerationMixin


def find_dropped(name: str) -> Any:
    """Return an argument of the `generate` that this thread runs, the innermost one; None without any."""
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            return frame.f_locals.get(name)
        frame = frame.f_back
    return None
