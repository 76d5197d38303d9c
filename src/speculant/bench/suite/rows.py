"""The rows of a benchmark, appended to a file after each item, so that an interrupted run can be resumed.

The first line of the file has the settings; a run with other settings cannot continue it. Each further line has the
rows of an item. A line truncated by an interruption is dropped, and its item is run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from speculant.core.errors import FileError, UsageError

PLAIN = "none"  # the method of plain decoding
NAME = "rows.jsonl"


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between an output and plain decoding's.

    Attributes:
        position: position of the token, from 1.
        margin: see `margins.Margin`; None if outputs were sampled, or if one is a prefix of the other.
        near_tie: whether rounding explains the difference; None likewise.
    """

    position: int
    margin: float | None
    near_tie: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """The figures of one request decoded by one method, without text or token ids; see `RequestOutcome` for the rest.

    Attributes:
        task, category, item, turn: identify the request.
        temperature, trial: how it was decoded, and in which repetition.
        identical: whether the tokens equal plain decoding's; None if the method does not guarantee that.
        divergence: their first difference.
        batch: maximum requests per pass. Above 1 the row represents a group of items, of which `item` is
            the last and `requests` the number of requests; rounds are counted once per request.
        device_bytes: peak memory of the accelerator; None on a CPU.
    """

    task: str
    category: str
    item: int
    turn: int
    temperature: float
    trial: int
    method: str
    prompt_tokens: int
    tokens: int
    prefill_tokens: int
    rounds: int
    drafted: int | None
    offered_by_depth: list[int] | None
    accepted_by_depth: list[int]
    seconds: float
    prefill_seconds: float
    draft_seconds: float | None
    target_seconds: float | None
    memory_bytes: int | None
    device_bytes: int | None
    identical: bool | None
    divergence: Divergence | None
    batch: int = 1
    requests: int = 1


def check_same(folder: Path, before: Mapping[str, Any], settings: Mapping[str, Any], names: Iterable[str]) -> None:
    """Check that a run in a folder can be continued.

    Args:
        folder: folder of the run.
        before: its settings, as read.
        settings: settings of the run that will continue it.
        names: the settings to compare.

    Raises:
        UsageError: some differ.
    """
    now = json.loads(json.dumps(dict(settings)))
    if changed := sorted(name for name in names if before.get(name) != now.get(name)):
        raise UsageError(
            f"{folder} holds a run with other settings ({', '.join(changed)}). Name another --out to keep it, or add "
            "--restart to discard it."
        )


class RowFile:
    """The rows of a run so far, in memory and on disk."""

    def __init__(self, folder: Path, settings: dict[str, Any], *, restart: bool = False) -> None:
        """Start a file, or resume the one that the folder holds.

        Args:
            folder: created if it does not exist.
            settings: must match for rows to be comparable.
            restart: whether to discard the rows of an earlier run.

        Raises:
            FileError: the folder cannot be used, or its file is not one of these.
            UsageError: the earlier run had other settings.
        """
        self.rows: list[ResultRow] = []
        self._finished: dict[tuple[str, float, int, int], int] = {}
        self.folder = folder
        self._path = folder / NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if restart or not self._path.exists():
                self._path.write_text(json.dumps(settings) + "\n", encoding="utf-8")
            else:
                self._read(settings)
        except OSError as error:
            raise FileError(f"cannot write to {folder}: {error.strerror}.") from error

    def append(self, rows: list[ResultRow]) -> None:
        """Append the rows of an item or group of items."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([asdict(row) for row in rows]) + "\n")
        self._add(rows)

    def finished_items(self, task: str, temperature: float, trial: int, batch: int = 1) -> int:
        """Return how many items of a task have rows."""
        return self._finished.get((task, temperature, trial, batch), 0)

    def _add(self, rows: Sequence[ResultRow]) -> None:
        self.rows += rows
        for row in rows:
            key = row.task, row.temperature, row.trial, row.batch
            self._finished[key] = max(self._finished.get(key, 0), row.item + 1)

    def _read(self, settings: dict[str, Any]) -> None:
        text = self._path.read_text(encoding="utf-8")
        complete = text[: text.rfind("\n") + 1]
        first, *lines = complete.splitlines() or [""]
        try:
            before = json.loads(first)
            for line in lines:
                for each in json.loads(line):
                    divergence = each.pop("divergence")
                    self._add([ResultRow(**each, divergence=divergence and Divergence(**divergence))])
        except (ValueError, TypeError, KeyError) as error:
            raise FileError(
                f"{self._path} holds no rows of this version. Name another --out, or add --restart."
            ) from error
        check_same(self.folder, before, settings, {*before, *settings})
        if complete != text:
            self._path.write_text(complete, encoding="utf-8")
