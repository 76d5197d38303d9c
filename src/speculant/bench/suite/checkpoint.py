"""Saves what systems have learned after each item, so that an interrupted run resumes with the same memory."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from speculant.bench.systems.system import System


class MemoryCheckpoint:
    """The memories after a number of items, one file per system; files of two counts overlap, so a crash loses none."""

    def __init__(self, folder: Path, systems: Sequence[System]) -> None:
        """Create the folder.

        Args:
            folder: folder of the files.
            systems: the systems with a memory.
        """
        self._folder, self._systems = folder, systems
        folder.mkdir(exist_ok=True)

    def save(self, items: int) -> None:
        """Write the memories after `items` items."""
        for system in self._systems:
            system.save(self._path(system, items))

    def load(self, items: int) -> None:
        """Read the memories after `items` items."""
        for system in self._systems:
            system.load(self._path(system, items))

    def remove(self, items: int) -> None:
        """Delete the files for `items` items."""
        for system in self._systems:
            self._path(system, items).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder, whose files have all been deleted."""
        with contextlib.suppress(OSError):  # it contains other files
            self._folder.rmdir()

    def _path(self, system: System, items: int) -> Path:
        return self._folder / f"{system.name}-{items}"
