"""The rows of a benchmark as they come: appended to a file, an item a line, so that an interrupted run goes on.

The first line holds the settings; a run with others does not continue the file. A line that was cut off when the run
was interrupted is dropped, and its item played again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from speculant.core.errors import FileError, UsageError

NAME = "rows.jsonl"


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an output first differs from plain decoding's: place from 1, margin of what was said there.

    The margin is None where the outputs were sampled, or where one is the beginning of the other.
    """

    position: int
    margin: float | None
    near_tie: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request, answered by one method; holds neither text nor token ids. See `Outcome` for the figures.

    Attributes:
        task, category, item, turn: which request; temperature, trial: how and for the how-manieth time.
        identical: whether the tokens are plain decoding's; None where the method does not promise it.
        divergence: where not.
        batch: how many requests a pass took at most; above 1 the row is of a group of items, `item` the last of them,
            `requests` all of them, and rounds are counted for each request.
        device_bytes: the most that the accelerator held meanwhile; None on a CPU.
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


class RowFile:
    """The rows so far, in memory and on disk."""

    def __init__(self, folder: Path, settings: dict[str, Any], *, restart: bool = False) -> None:
        """Begin a file, or go on with the one that is there.

        Args:
            folder: it is made if it is not there.
            settings: what makes rows comparable.
            restart: forget the rows that are there.

        Raises:
            FileError: the folder cannot be used, or holds a file that is none of these.
            UsageError: what is there was made with other settings.
        """
        self.rows: list[Row] = []
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

    def append(self, rows: list[Row]) -> None:
        """Keep the rows of an item."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([asdict(row) for row in rows]) + "\n")
        self.rows += rows

    def items(self, task: str, temperature: float, trial: int, batch: int = 1) -> int:
        """Return how many items of a task are done."""
        wanted = task, temperature, trial, batch
        done = [row.item for row in self.rows if (row.task, row.temperature, row.trial, row.batch) == wanted]
        return 1 + max(done, default=-1)

    def _read(self, settings: dict[str, Any]) -> None:
        text = self._path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        first, *lines = whole.splitlines() or [""]
        try:
            before = json.loads(first)
            for line in lines:
                for each in json.loads(line):
                    divergence = each.pop("divergence")
                    self.rows.append(Row(**each, divergence=divergence and Divergence(**divergence)))
        except (ValueError, TypeError, KeyError) as error:
            raise FileError(f"{self._path} holds no rows of this version. Name another --out, or --restart.") from error
        if before != json.loads(json.dumps(settings)):
            other = sorted(key for key in {*before, *settings} if before.get(key) != settings.get(key))
            raise UsageError(
                f"{self._path.parent} holds a run with other settings ({', '.join(other)}). Name another --out to keep "
                "it, or --restart to begin anew."
            )
        if whole != text:
            self._path.write_text(whole, encoding="utf-8")
