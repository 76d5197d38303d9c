"""Reads the files of a corpus piece by piece: text, JSON lines and JSON lists, optionally compressed by gzip."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from speculant.core.errors import FileError
from speculant.corpus.json_lists import read_entries
from speculant.corpus.rows import CorpusRow, parse_row, read_row

SEPARATOR = b"<|endoftext|>"
LONGEST = 4 << 20
LONGEST_ROW = 64 << 20
SNIFFED = 1 << 16
MAX_FOREIGN = 0.1  # maximum share of non-UTF-8 characters in a text file
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)

Advance = Callable[[int], object]
Reject = Callable[[str], object]


def why_no_text(path: Path) -> str:
    """Return why a file has no text: "is empty", "is binary" or "is damaged"; empty if it may have some.

    Raises:
        FileError: it cannot be read.
    """
    try:
        with path.open("rb") as raw:
            start = _unpack(path, raw).read(SNIFFED)
    except DAMAGED:
        return "is damaged"
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    if not start.strip():
        return "is empty"
    text = start.decode("utf-8", "replace")
    return "is binary" if b"\0" in start or text.count("\ufffd") > MAX_FOREIGN * len(text) + 1 else ""


def read_rows(path: Path, *, vocabulary: int, advance: Advance, reject: Reject, skip: int = 0) -> Iterator[CorpusRow]:
    """Yield the rows of a file.

    Args:
        path: see `read_values`.
        vocabulary: upper bound of ids.
        advance: called with the number of bytes read.
        reject: called with file, place and reason of each unusable row.
        skip: rows up to this place are skipped.

    Raises:
        FileError: the file cannot be read.
    """
    for place, value in read_values(path, advance=advance, reject=reject, skip=skip):
        try:
            yield read_row(value, vocabulary=vocabulary, place=place)
        except ValueError as error:
            reject(f"{path}:{place}: {error}; this row is left out.")


def read_values(path: Path, *, advance: Advance, reject: Reject, skip: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a file as JSON values, each with its place: the number of lines or entries read with it.

    Args:
        path: .jsonl has a row per line, .json a list of rows or one row. Every other file, and other JSON, is text,
            split into rows {"text"} at lines that contain only <|endoftext|>, a .txt file at every <|endoftext|>, and
            after 4 MB in any case, so that it need not fit into memory. Each may be compressed, as .jsonl.gz is.
        advance: called with the number of bytes read.
        reject: called with file, place and reason of invalid JSON, and of a damaged end.
        skip: rows up to this place are skipped.

    Raises:
        FileError: the file cannot be read.
    """
    try:
        form = _form(path)
        with path.open("rb") as raw:
            file, seen = _unpack(path, raw), 0

            def advanced() -> None:
                nonlocal seen
                now = raw.tell()
                advance(now - seen)
                seen = now

            try:
                if form == ".jsonl":
                    yield from _lines(path, file, advanced, reject, skip)
                elif form == ".json":
                    for place, value in read_entries(file, advanced, lambda why: reject(f"{path}: {why}")):
                        if place > skip:
                            yield place, value
                else:
                    # In code and markup a separator within a line is a quotation.
                    for place, text in _texts(file, advanced, within_lines=inner_suffix(path) == ".txt"):
                        if place > skip:
                            yield place, {"text": text}
            except DAMAGED:
                reject(f"{path} is damaged: it ends in the middle of its compressed data; the rest is left out.")
            advanced()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}.") from error


def inner_suffix(path: Path) -> str:
    """Return a file's suffix, ignoring that of its compression."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def _unpack(path: Path, raw: BinaryIO) -> BinaryIO:
    if path.suffix != ".gz":
        return raw
    return cast("BinaryIO", io.BufferedReader(gzip.GzipFile(fileobj=raw), SNIFFED))


def _form(path: Path) -> str:
    """Return ".jsonl", ".json" for lists of objects and for one row, or "" for text."""
    suffix = inner_suffix(path)
    if suffix != ".json":
        return suffix if suffix == ".jsonl" else ""
    try:
        with path.open("rb") as raw:
            file = _unpack(path, raw)
            start = file.read(SNIFFED)
            compact = b"".join(start[:1000].removeprefix(codecs.BOM_UTF8).split())
            if compact.startswith((b"[{", b"[]")):
                return ".json"
            if not compact.startswith(b"{"):
                return ""
            whole = start + file.read(LONGEST_ROW - SNIFFED)
        parse_row(json.loads(whole), 1 << 62)
    except (ValueError, RecursionError, *DAMAGED):
        return ""
    return ".json"


def _lines(
    path: Path, file: BinaryIO, advanced: Callable[[], None], reject: Reject, skip: int
) -> Iterator[tuple[int, Any]]:
    number, whole = 0, True
    while line := file.readline(LONGEST_ROW):
        begins, whole = whole, line.endswith(b"\n")
        number += begins
        advanced()
        if number <= skip or not begins or not line.strip():
            continue
        if len(line) == LONGEST_ROW and not whole:
            reject(f"{path}:{number}: longer than {LONGEST_ROW >> 20} MB; this row is left out.")
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reject(f"{path}:{number}: {parse_reason(error)}; this row is left out.")
        else:
            yield number, value


def _texts(file: BinaryIO, advanced: Callable[[], None], *, within_lines: bool) -> Iterator[tuple[int, str]]:
    """Yield documents with their places, which count lines plus separators within lines."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a long line may be split within a character
    lines: list[bytes] = []
    size = number = 0
    while line := file.readline(LONGEST):
        advanced()
        pieces = [b"", b""] if line.strip() == SEPARATOR else line.split(SEPARATOR) if within_lines else [line]
        for place, piece in enumerate(pieces):
            number += 1
            ends = place < len(pieces) - 1
            lines.append(piece)
            size += len(piece)
            if ends or size > LONGEST:
                yield number, decoder.decode(b"".join(lines), final=ends)
                lines, size = [], 0
    yield number + 1, decoder.decode(b"".join(lines), final=True)


def parse_reason(error: Exception) -> str:
    """Return in words why JSON could not be read."""
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON ({error.msg})"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
