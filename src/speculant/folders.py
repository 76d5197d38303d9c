"""Where what is made once on a machine is kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of what can be made again: compiled code, measured costs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "speculant"
