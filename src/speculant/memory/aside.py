"""Files written aside and then renamed: a reader sees the old file or the new one, and killed writers leave nothing.

A writer holds a lock on its file aside, which the kernel releases when the process ends, however it ends. So whoever
gets the lock of such a file knows that nobody is writing it any more. On file systems without locks nothing is removed.
"""

from __future__ import annotations

import fcntl
import glob
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

SUFFIX = ".saving"


@contextmanager
def write_aside(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that takes the place of `path` at the end, once it is on the disk; removed where that fails.

    What earlier writers of `path` left when they were killed is removed first.

    Raises:
        OSError: a file cannot be written there; `path` is as it was.
    """
    remove_stale(path)
    with _lock_new_file(path) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)  # while it is locked: nobody may take it for a stale one
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(file.name)
            raise


def remove_stale(path: Path) -> list[Path]:
    """Remove the files aside of writers of `path` that were killed, and return them; those of live ones stay."""
    removed = []
    for name in sorted(glob.glob(f"{glob.escape(str(path.parent / f'.{path.name}'))}.*{SUFFIX}")):
        with suppress(OSError), open(name, "rb") as file:  # it may be another user's, or be gone by now
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name)
            removed.append(Path(name))
    return removed


def _lock_new_file(path: Path) -> IO[bytes]:
    """Return a new file aside with its lock held."""
    while True:
        file = tempfile.NamedTemporaryFile(  # noqa: SIM115  (the caller closes it)
            dir=path.parent, prefix=f".{path.name}.", suffix=SUFFIX, delete=False
        )
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.exists(file.name):  # else another process had the lock first, and took the file for a stale one
            return file
        file.close()
