"""Where what is made once on a machine is kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of what can be made again: compiled code, measured costs.

    Raises:
        OSError: this user has no home folder.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():  # a relative one would be the working directory's, and is to be ignored
        return given / "speculant"
    try:
        return Path.home() / ".cache" / "speculant"
    except RuntimeError as error:
        raise OSError(str(error)) from error
