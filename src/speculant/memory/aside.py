"""Atomic file writes: files are written under a temporary name and then renamed, and leftovers are cleaned up.

A writer holds a lock on its temporary file, which the kernel releases when the process ends, however it ends. So a
process that gets the lock of such a file knows that nobody is writing it. On file systems without locks nothing is
removed.
"""

from __future__ import annotations

import fcntl
import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

SUFFIX = ".saving"
PRIVATE, SHARED = 0o600, 0o666  # permissions of memories, which hold users' texts, and of files for everyone


@contextmanager
def write_aside(path: Path, *, mode: int = PRIVATE) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` on exit, after it is synced to disk; on failure it is removed.

    Files left by earlier writers of `path` that were killed are removed first.

    Args:
        path: the file to write.
        mode: permissions of the file, of which the process's umask takes some away.

    Raises:
        OSError: a file cannot be written there; `path` is unchanged.
    """
    remove_stale(path)
    with _lock_new_file(path, mode) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)  # while it is locked, so that no process removes it as stale
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(file.name)
            raise


def remove_stale(path: Path) -> list[Path]:
    """Remove and return the temporary files that killed writers of `path` left; those of live writers stay."""
    removed = []
    for name in sorted(glob.glob(f"{glob.escape(str(path.parent / f'.{path.name}'))}.*{SUFFIX}")):
        with suppress(OSError), open(name, "rb") as file:  # it may belong to another user, or be gone already
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name)
            removed.append(Path(name))
    return removed


def _lock_new_file(path: Path, mode: int) -> IO[bytes]:
    """Return a new temporary file with its lock held."""
    while True:
        name = path.parent / f".{path.name}.{secrets.token_hex(8)}{SUFFIX}"
        file = open(name, "xb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115  (the caller closes it)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.exists(file.name):  # otherwise another process got the lock first and removed the file as stale
            return file
        file.close()
