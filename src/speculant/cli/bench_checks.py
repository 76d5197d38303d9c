"""What is checked of the options of `speculant bench` before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from speculant.cli.values import temperature
from speculant.core.errors import FileError, UsageError

if TYPE_CHECKING:
    from speculant.cli.bench_settings import Bench

ROWS = "rows.jsonl"
RESULTS = ("result.json", "table.md", "report.html")


def check(asked: Bench, *, seeded: bool = False) -> None:
    """Check before anything is loaded that the options fit together.

    Args:
        asked: the options.
        seeded: whether --seed was given.

    Raises:
        UsageError, FileError: it cannot.
    """
    batches(asked.batch)
    if asked.forced or asked.tasks is not None:
        task_names(asked)
    if (asked.forced and asked.tasks is not None) or not (asked.forced or asked.tasks or asked.growth):
        raise UsageError("name what to decode: either --tasks, or --forced and recorded outputs; or --growth.")
    if asked.config is not None and not asked.forced and (asked.tasks is not None or not asked.growth):
        raise UsageError("random weights generate nothing of use: --config needs --forced TRACES, or --growth.")
    if asked.config is not None and asked.loading.model is not None:
        raise UsageError("MODEL and --config both name the model; leave one out.")
    ignored = [name for name in ("max_new_tokens", "data") if asked.forced and getattr(asked, name) is not None]
    if ignored:
        raise UsageError(f"a forced run takes texts and lengths from its recordings; leave {flags(ignored)} out.")
    check_folder(Path(asked.out), restart=asked.restart)
    if asked.forced and any(temperatures(asked.temperature)):
        raise UsageError("a forced run follows recorded outputs and samples nothing; leave --temperature out.")
    if seeded and not any(temperatures(asked.temperature)):
        raise UsageError("--seed would be ignored: decoding is greedy. Add --temperature 1, or leave --seed out.")


def check_folder(folder: Path, *, restart: bool) -> None:
    """Check that the folder for the results holds nothing of theirs by name that `speculant bench` did not write.

    Raises:
        FileError: it is a file.
        UsageError: it holds other files.
    """
    if folder.is_file():
        raise FileError(f"{folder} is a file; name a folder by --out.")
    rows = folder / ROWS
    if rows.exists():
        foreign = [ROWS] if restart and not _ours(rows) else []
    else:
        foreign = [name for name in RESULTS if (folder / name).exists()]
    if foreign:
        raise UsageError(
            f"{folder} holds {' and '.join(foreign)} that `speculant bench` did not write; they are not overwritten. "
            "Name a new folder by --out."
        )


def _ours(rows: Path) -> bool:
    """Return whether a file of rows begins with the settings of a run."""
    try:
        with rows.open(encoding="utf-8") as file:
            settings = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(settings, dict) and "trials" in settings


def flags(names: Sequence[str]) -> str:
    """Return options as they are typed."""
    return " and ".join(f"--{name.replace('_', '-')}" for name in names)


def temperatures(text: str) -> list[float]:
    """Return the numbers of "T,...".

    Raises:
        UsageError: they are none, or cannot be sampled at.
    """
    try:
        found = [temperature(part) for part in text.split(",") if part.strip()]
    except typer.BadParameter as error:
        raise UsageError(f"--temperature takes numbers with commas between them: each {error.message}") from None
    if not found:
        raise UsageError(f"--temperature takes numbers with commas between them, not '{text}'.")
    return list(dict.fromkeys(found))


def batches(text: str) -> list[int]:
    """Return the numbers of "N,...".

    Raises:
        UsageError: they are none, or below 1.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() and int(part) for part in parts):
        raise UsageError(f"--batch takes numbers of 1 or more with commas between them, not '{text}'.")
    return list(dict.fromkeys(map(int, parts)))


def task_names(asked: Bench) -> list[str]:
    """Return what --tasks or --forced name.

    Raises:
        UsageError: nothing, or two of the same name.
    """
    given = asked.forced or [name.strip() for name in (asked.tasks or "").split(",") if name.strip()]
    names = list(dict.fromkeys(given))
    called = [Path(name).stem for name in names]
    if not names or len(set(called)) < len(called):
        raise UsageError("name at least one task, and files that are called differently: results go by their names.")
    return names
