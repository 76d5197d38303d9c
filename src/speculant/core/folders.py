"""The user's folders for cached files, which can be recreated, and for data, which cannot."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of files that can be recreated: compiled code, measured costs.

    Raises:
        OSError: the user has no home folder.
    """
    return _folder("XDG_CACHE_HOME", ".cache")


def data_folder() -> Path:
    """Return the folder of data that the user has collected: bases.

    Raises:
        OSError: the user has no home folder.
    """
    return _folder("XDG_DATA_HOME", ".local/share")


def _folder(variable: str, default: str) -> Path:
    given = Path(os.environ.get(variable, ""))
    if given.is_absolute():  # relative paths must be ignored, says the XDG specification
        return given / "speculant"
    try:
        return Path.home() / default / "speculant"
    except RuntimeError as error:
        raise OSError(str(error)) from error
