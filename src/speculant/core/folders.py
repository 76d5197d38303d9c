"""Where files outside the user's own folders are kept: what can be made again, and what cannot."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of what can be made again: compiled code, measured costs.

    Raises:
        OSError: this user has no home folder.
    """
    return _folder("XDG_CACHE_HOME", ".cache")


def data_folder() -> Path:
    """Return the folder of what the user has collected: bases.

    Raises:
        OSError: this user has no home folder.
    """
    return _folder("XDG_DATA_HOME", ".local/share")


def _folder(variable: str, default: str) -> Path:
    given = Path(os.environ.get(variable, ""))
    if given.is_absolute():  # a relative one would be the working directory's, and is to be ignored
        return given / "speculant"
    try:
        return Path.home() / default / "speculant"
    except RuntimeError as error:
        raise OSError(str(error)) from error
