"""Recognises GGUF files by their first bytes, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from speculant.core.errors import FileError, ModelError, ModelNotFoundError

MAGIC = b"GGUF"


def is_gguf(path: str | Path) -> bool:
    """Return whether a path names a file with a GGUF header, or has the suffix of one."""
    return str(path).lower().endswith(".gguf") or begins_as_gguf(path)


def begins_as_gguf(path: str | Path) -> bool:
    """Return whether a file is readable and has a GGUF header."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def check_file(path: Path) -> None:
    """Check that a file exists and has a GGUF header.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelError: it is another kind of file.
        FileError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            begin = file.read(len(MAGIC))
    except FileNotFoundError:
        raise ModelNotFoundError(f"there is no model at {path}: the file does not exist.") from None
    except IsADirectoryError:
        raise ModelNotFoundError(f"{path} is a folder; name the GGUF file in it.") from None
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    if begin != MAGIC:
        raise ModelError(f"{path} is not a GGUF file; `speculant gguf` makes one of a model.")
