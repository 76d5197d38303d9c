"""Checks of output files before the work begins, so that no other file is overwritten.

An earlier result of the same form is overwritten, as compilers and loggers do; anything else may be a user's file named
by mistake, and is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from speculant.core.errors import FileError, UsageError

JSON, PAGE = "JSON", "an HTML page"
_PAGE_STARTS = (b"<!doctype html", b"<html")


def check_writable(path: str) -> None:
    """Check that a result can be written, before the work begins.

    Raises:
        FileError: it cannot.
    """
    place, folder = Path(path), Path(path).parent
    if place.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"there is no folder {folder}"
    elif not os.access(place if place.exists() else folder, os.W_OK):
        reason = "permission denied"
    else:
        return
    raise FileError(f"cannot write {path}: {reason}. Name a file in a folder that exists and is writable.")


def check_result(option: str, path: str | None, form: str, inputs: Iterable[str | Path | None] = ()) -> None:
    """Check an output file: writable, not an input, and new or an earlier result of that form.

    Args:
        option: the option that named it, for messages.
        path: the file; None and "-" for none.
        form: JSON or PAGE.
        inputs: other files that the same command reads or writes.

    Raises:
        UsageError: it would destroy another file.
        FileError: it cannot be written.
    """
    if path is None or path == "-":
        return
    check_writable(path)
    check_no_input(option, path, inputs)
    if Path(path).exists() and not _is_form(Path(path), form):
        raise UsageError(
            f"{option} {path} exists and is not {form}; it is not overwritten. Name another file, or delete it first."
        )


def check_no_input(option: str, path: str | Path, inputs: Iterable[str | Path | None]) -> None:
    """Check that an output is not one of a command's other files.

    Raises:
        UsageError: it is.
    """
    for each in inputs:
        if each is not None and same_file(path, each):
            raise UsageError(f"{option} {path} is also another file of this command ({each}). Name a new file.")


def check_memory_output(path: str, inputs: Iterable[str | Path], *, force: bool) -> None:
    """Check a file for a new memory: not an input, and new or, with `force`, a memory.

    Raises:
        UsageError: it would destroy another file.
        FileError: it cannot be written.
    """
    check_writable(path)
    for each in inputs:
        if same_file(path, each):
            raise UsageError(f"the output {path} is one of the inputs and would be lost. Name a new file after -o.")
    if not Path(path).exists() or Path(path).stat().st_size == 0:
        return
    if not is_memory(Path(path)):
        raise UsageError(
            f"{path} exists and is not a memory file; it is not overwritten. Is the name of the output missing "
            "after -o? Name a new file."
        )
    if not force:
        raise UsageError(f"{path} is already a memory file. Name another file, or add --force to replace it.")


def is_memory(path: Path) -> bool:
    """Return whether a file starts like a memory file."""
    from speculant.memory.file import MAGIC

    return _beginning(path, len(MAGIC)) == MAGIC


def same_file(one: str | Path, other: str | Path) -> bool:
    """Return whether two names refer to the same file, following links."""
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them does not exist
        return os.path.realpath(one) == os.path.realpath(other)


def file_size(path: Path) -> int:
    """Return a file's size.

    Raises:
        FileError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.seek(0, 2)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error


def write_json(path: str, value: Any) -> None:
    """Write JSON to a file, or to standard output for "-".

    Raises:
        FileError: the file cannot be written.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if path == "-":
        print(text, flush=True)
    else:
        write_text(path, text + "\n")


def write_record(path: str, record: Any) -> None:
    """Write one request's result as JSON to a file, or as a line to standard output for "-".

    Raises:
        FileError: the file cannot be written.
    """
    if path == "-":
        print(json.dumps(record, ensure_ascii=False))
    else:
        write_text(path, json.dumps(record, ensure_ascii=False, indent=1) + "\n")


def write_text(path: str, text: str) -> None:
    """Write a file.

    Raises:
        FileError: it cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}.") from error


def _is_form(path: Path, form: str) -> bool:
    if not path.is_file():  # a device or a pipe has no contents to lose
        return True
    if form == PAGE:
        start = _beginning(path, 1024).lstrip(b"\xef\xbb\xbf \r\n\t").lower()
        return not start or start.startswith(_PAGE_STARTS)
    try:
        text = path.read_text(encoding="utf-8")
        return not text.strip() or json.loads(text) is not None
    except (OSError, ValueError, RecursionError):
        return False


def _beginning(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
