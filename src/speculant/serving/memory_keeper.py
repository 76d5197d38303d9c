"""Persistence of drafter memories: loaded at startup, saved periodically and at shutdown.

A full disk causes a log line and a metric, never a failed response. Files are written under a temporary name and
renamed, so however the process ends, the last save stays intact.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from speculant.core.drafter import Drafter, Loadable, Persistent
from speculant.core.errors import FileError, MemoryFileError, SpeculantError, UnsupportedError
from speculant.serving.scoped_metrics import ScopedMetrics

logger = logging.getLogger(__name__)
FileState = tuple[int, int, int]


class MemoryKeeper:
    """Saves the memories of one server.

    Attributes:
        unused: files that could not be used, and why; they are left untouched.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        path: Path | None,
        *,
        corpus: Path | None,
        seconds: float,
        strict: bool = False,
        metrics: ScopedMetrics,
    ) -> None:
        """Load the existing memories.

        Args:
            drafters: drafters by tenant, "" for the shared one.
            path: file of the shared memory; tenants' files are next to it, with the tenant before the suffix. None to
                save nothing.
            corpus: the initial memory if there is no file yet; None for an empty one.
            seconds: time between saves.
            strict: whether an unusable file is an error; otherwise its memory starts empty and is not saved.
            metrics: counts saves and failures.

        Raises:
            FileError, MemoryFileError: the corpus, or with `strict` a memory, cannot be used, or there is no folder.
            UnsupportedError: the method keeps no memory, or the corpus does not fit it.
        """
        self._seconds, self._metrics = seconds, metrics
        self._lock = threading.Lock()
        self._strict = strict
        self._drafters = drafters
        self._paths = {} if path is None else {tenant: tenant_path(path, tenant) for tenant in drafters}
        self._saved: set[str] = set()  # tenants whose memories are saved
        self._known: dict[str, FileState] = {}  # states of tenants' files when last read or written
        self.unused: dict[Path, str] = {}
        if path is not None and not path.parent.is_dir():
            raise FileError(f"cannot keep a memory in {path}: there is no folder {path.parent}.")
        for tenant, drafter in drafters.items():
            if isinstance(drafter, Persistent):
                self._begin(tenant, drafter, corpus)
            elif path is None and corpus is not None and isinstance(drafter, Loadable):
                drafter.load(corpus)
            elif path is not None or corpus is not None:
                raise UnsupportedError(
                    "this drafting method keeps no memory; leave out --memory and --corpus, or use --method mix."
                )
        metrics.watch("memory_bytes", "Bytes of drafter memories.", lambda own: memory_bytes(drafters, own), own=True)

    def _begin(self, tenant: str, drafter: Persistent, corpus: Path | None) -> None:
        path = self._paths.get(tenant)
        if path is not None and path.exists():
            try:
                drafter.load(path)
            except (MemoryFileError, FileError, UnsupportedError) as error:
                if self._strict:
                    raise
                self.unused[path] = str(error)
                self._known[tenant] = file_state(path)
                self._metrics.of(tenant).unused.set(1)
                logger.warning("%s Drafting begins without it; the file is left as it is, and nothing is saved.", error)
                return
        elif corpus is not None:
            drafter.load(corpus)
        if path is not None:
            self._saved.add(tenant)
            self._known[tenant] = file_state(path)

    async def run(self) -> None:
        """Save every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            await asyncio.to_thread(self.save)

    def save(self) -> bool:
        """Save every memory; return whether all saves succeeded."""
        done = True
        with self._lock:
            for tenant in sorted(self._saved):
                metrics, drafter = self._metrics.of(tenant), self._drafters[tenant]
                assert isinstance(drafter, Persistent)
                try:
                    drafter.save(self._paths[tenant])
                except (SpeculantError, OSError, MemoryError) as error:
                    metrics.save_failures.inc()
                    logger.error("the drafter memory was not saved: %s", error)
                    done = False
                else:
                    self._known[tenant] = file_state(self._paths[tenant])
                    metrics.saves.inc()
                    metrics.saved_at.set(time.time())
        return done

    def close(self) -> None:
        """Save every memory for the last time, and log it."""
        if self.save():
            for tenant in sorted(self._saved):
                logger.info("memory saved to %s", self._paths[tenant])

    @contextmanager
    def pause_saving(self) -> Iterator[None]:
        """Suspend saving, so that memories and files can be replaced."""
        with self._lock:
            yield

    def find_replaced(self, tenant: str) -> Path | None:
        """Return the file of a tenant's memory if another program has replaced it since it was read or written."""
        path = self._paths.get(tenant)
        if path is None or not path.exists() or file_state(path) == self._known.get(tenant):
            return None
        return path

    def accept(self, tenant: str, path: Path) -> None:
        """Save to a file that was reloaded from now on."""
        self._saved.add(tenant)
        self._known[tenant] = file_state(path)
        self.unused.pop(path, None)
        self._metrics.of(tenant).unused.set(0)


def file_state(path: Path) -> FileState:
    """Return a file's inode, size and modification time, which change with it; zeros if there is none."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def tenant_path(path: Path, tenant: str) -> Path:
    """Return the file of a tenant's memory."""
    return path if not tenant else path.with_name(f"{path.stem}.{tenant}{path.suffix}")


def memory_bytes(drafters: Mapping[str, Drafter], tenant: str | None = None) -> int:
    """Return the current size of memories in bytes, for drafters that report it.

    Args:
        drafters: drafters by tenant, "" for the shared one.
        tenant: count only this tenant's memory and the shared one; None for all.
    """
    own = [drafter for name, drafter in drafters.items() if tenant is None or name in ("", tenant)]
    return sum(getattr(drafter, "memory_bytes", None) or 0 for drafter in own)
