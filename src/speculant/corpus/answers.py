"""The answers that a model has written for a base: an append-only .jsonl file with a row for each.

A row is {"prompt_ids", "output_ids", "place", "tokenizer"}: token ids as the model read and wrote them, which is also a
valid row for a corpus and for recorded answers; the number of the request; and the fingerprint of the tokenizer. An
interrupted run continues after the last row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from speculant.core.errors import FileError, UsageError


class AnswerFile:
    """The file, open for appending.

    Attributes:
        path: path of the file.
        rows, tokens: number of rows, and of answer tokens without prompts.
        place: number of the next request.
    """

    def __init__(self, path: Path, *, tokenizer: str) -> None:
        """Open or create a file.

        Args:
            path: path of the file. A row truncated when a process ended is removed.
            tokenizer: the fingerprint of the tokenizer.

        Raises:
            UsageError: it has other contents, or answers of another tokenizer.
            FileError: it cannot be read or written.
        """
        self.path, self._tokenizer = path, tokenizer
        self.rows = self.tokens = self.place = 0
        try:
            self._file: BinaryIO = path.open("a+b")
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror}.") from error
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> None:
        self._file.seek(0)
        whole = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            row = _row(line)
            if row is None:
                raise UsageError(f"{self.path} exists and holds no answers of this command. Name another output.")
            if row["tokenizer"] != self._tokenizer:
                raise UsageError(
                    f"{self.path} holds answers of a model with another tokenizer. Name another output, or delete it."
                )
            self.rows, self.tokens = self.rows + 1, self.tokens + len(row["output_ids"])
            self.place = max(self.place, row["place"] + 1)
            whole += len(line)
        self._file.truncate(whole)

    def append(self, prompt: Sequence[int], output: Sequence[int], *, place: int) -> None:
        """Write an answer.

        Raises:
            FileError: it cannot be written; the disk may be full.
        """
        row = {"prompt_ids": list(prompt), "output_ids": list(output), "place": place, "tokenizer": self._tokenizer}
        try:
            self._file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise FileError(f"cannot write {self.path}: {error.strerror}. What it holds so far is kept.") from error
        self.rows, self.tokens = self.rows + 1, self.tokens + len(output)
        self.place = max(self.place, place + 1)

    def close(self) -> None:
        """Close the file; an empty one is removed."""
        self._file.close()
        if not self.rows:
            self.path.unlink(missing_ok=True)


def _row(line: bytes) -> dict[str, Any] | None:
    """Parse a row of such a file; None for other lines."""
    try:
        row: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match row:
        case {"prompt_ids": list(), "output_ids": list(), "place": int(), "tokenizer": str()}:
            return row
    return None
