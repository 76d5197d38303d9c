"""The documents of a corpus: text files and JSON lines, read piece by piece."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from speculant.cli.prompts import is_text
from speculant.core.errors import FileError

Document = str | list[int]

SEPARATOR = b"<|endoftext|>"
LONGEST = 4 << 20
SNIFFED = 1 << 16
MOST_FOREIGN = 0.1  # share of characters that are no UTF-8, up to which a file counts as text
FORMS = 'a row is {"text"}, {"messages": [{"content"}]}, {"ids"} or {"prompt_ids", "output_ids"}'


def why_no_text(path: Path) -> str:
    """Return why a file holds no text: "is empty" or "is binary"; empty if it may hold some.

    Raises:
        FileError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(SNIFFED)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    if not start.strip():
        return "is empty"
    text = start.decode("utf-8", "replace")
    return "is binary" if b"\0" in start or text.count("\ufffd") > MOST_FOREIGN * len(text) + 1 else ""


def read_documents(
    path: Path, *, vocabulary: int, advance: Callable[[int], object], reject: Callable[[str], object]
) -> Iterator[Document]:
    """Yield the documents of a file, as text or as token ids.

    Args:
        path: .jsonl holds a row per line; every other file is text, cut into documents by lines that hold only
            <|endoftext|>, and after 4 MB in any case, so that it need not fit into memory.
        vocabulary: ids must be below.
        advance: is given how many bytes were read.
        reject: is given file, line and reason of each row that cannot be used.

    Raises:
        FileError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            if path.suffix != ".jsonl":
                yield from _texts(file, advance)
                return
            for number, line in enumerate(file, start=1):
                advance(len(line))
                if not line.strip():
                    continue
                try:
                    yield from parse_row(json.loads(line), vocabulary)
                except (ValueError, RecursionError) as error:
                    reject(f"{path}:{number}: {_reason(error)}; this row is left out.")
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error


def parse_row(row: Any, vocabulary: int) -> list[Document]:
    """Return the documents of a row; each message is one of its own.

    Raises:
        ValueError: it holds none.
    """
    match row:
        case {"text": str(text)}:
            documents: list[Document] = [text]
        case {"messages": [*messages]}:
            contents = [message.get("content") for message in messages if isinstance(message, dict)]
            documents = [content for content in contents if isinstance(content, str)]
        case {"ids": [*ids]}:
            documents = [list(ids)]
        case {"prompt_ids": _} | {"output_ids": _}:
            parts = [row.get("prompt_ids", []), row.get("output_ids", [])]
            documents = [parts[0] + parts[1]] if all(isinstance(part, list) for part in parts) else []
        case _:
            documents = []
    if not documents:
        raise ValueError(FORMS)
    for document in documents:
        if isinstance(document, list) and not all(type(i) is int and 0 <= i < vocabulary for i in document):
            raise ValueError(f"token ids must be whole numbers from 0 to {vocabulary - 1}")
        if isinstance(document, str) and not is_text(document):
            raise ValueError("the text holds half of a surrogate pair")
    return documents


def _texts(file: BinaryIO, advance: Callable[[int], object]) -> Iterator[str]:
    lines: list[bytes] = []
    size = 0
    for line in file:
        advance(len(line))
        ends = line.strip() == SEPARATOR
        if not ends:
            lines.append(line)
            size += len(line)
        if ends or size > LONGEST:
            yield b"".join(lines).decode("utf-8", "replace")
            lines, size = [], 0
    yield b"".join(lines).decode("utf-8", "replace")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON ({error.msg})"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
