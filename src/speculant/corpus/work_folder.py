"""The folder of unfinished work next to an output: its plan and progress; one process at a time builds it.

An interrupted command that is given again continues from its last state. The plan, which never changes, shows whether
it is the same command on the same files.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speculant.core.errors import FileError, UsageError

PLAN, STATE, LOCK, DATA = "plan.json", "state.json", "lock", "data"


class WorkFolder:
    """`.NAME.building`, locked until it is closed.

    Attributes:
        path: path of the folder.
        data: path of a folder in it, for temporary files.
    """

    def __init__(self, output: Path) -> None:
        """Create the folder, or open an existing one.

        Args:
            output: the file that is being built.

        Raises:
            UsageError: another process is building it.
            FileError: the folder cannot be written.
        """
        self.path = output.parent / f".{output.name}.building"
        self.data = self.path / DATA
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise UsageError(
                f"another process is building {output}. Wait until it is done, or name another output."
            ) from error

    def plan(self) -> dict[str, Any] | None:
        """Return the plan of the earlier work; None if there is none."""
        return self._read(PLAN)

    def state(self) -> dict[str, Any] | None:
        """Return the progress of the earlier work; None if no state was stored."""
        return self._read(STATE)

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Drop all earlier work and store a new plan.

        Raises:
            FileError: the disk is full.
        """
        try:
            for name in (STATE, PLAN):
                (self.path / name).unlink(missing_ok=True)
            shutil.rmtree(self.data)
            self.data.mkdir()
        except OSError as error:
            raise self._unusable(error) from error
        self._write(PLAN, plan)

    def save(self, state: Mapping[str, Any]) -> None:
        """Store the progress of the work, all or nothing.

        Raises:
            FileError: the disk is full; the previous state remains.
        """
        self._write(STATE, state)

    def close(self) -> None:
        """Unlock the folder for other processes."""
        os.close(self._lock)

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise FileError(
                f"the unfinished work in {self.path} cannot be used: {name} is damaged ({error}). "
                "Add --restart to begin anew."
            ) from error
        return found

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        place = self.path / f"{name}.new"
        try:
            with place.open("w", encoding="utf-8") as file:
                json.dump(value, file)
                file.flush()
                os.fsync(file.fileno())
            place.replace(self.path / name)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> FileError:
        return FileError(f"cannot write to {self.path}: {error.strerror}.")


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return a description of the difference between two plans; empty if there is none.

    Plans are flat except for lists of [name, ...] and their values.
    """
    for name in dict.fromkeys([*old, *new]):
        before, now = old.get(name), new.get(name)
        if before == now:
            continue
        if not (isinstance(before, list) and isinstance(now, list)):
            return f"{name} was {format_setting(before)} and is now {format_setting(now)}"
        entries, present = {each[0]: each for each in before}, {each[0]: each for each in now}
        for key in [*entries, *present]:
            if key not in present:
                return f"{name} had {key}, which is missing now"
            if key not in entries:
                return f"{name} now has {key}, which is new"
            if entries[key] != present[key]:
                return f"{key} has changed since"
        return f"{name} are in another order"
    return ""


def format_setting(value: Any) -> str:
    """Return a setting for a message."""
    return "not given" if value is None else str(value)
