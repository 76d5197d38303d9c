"""A progress bar with rate and time left, drawn by rich on standard error."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text


class RateColumn(ProgressColumn):
    """Units per second, or seconds per unit below one per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        if self._unit == "bytes":
            return Text(f"{decimal(int(speed))}/s")
        return Text(f"{speed:,.0f} {self._unit}/s" if speed >= 1 else f"{1 / speed:.1f} s each")


class Bar:
    """A progress bar that is erased at the end."""

    def __init__(self, what: str, total: int | None, unit: str, *, done: int = 0) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            RateColumn(unit),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
        )
        self._task = self._progress.add_task(what, total=total, completed=done)

    def advance(self, units: int = 1) -> None:
        """Count units."""
        self._progress.update(self._task, advance=units)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()
