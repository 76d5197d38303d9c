"""Keeps drafter memories on disk: loaded at the start, saved now and then and at the end.

A disk that is full costs a log line and a count, never an answer. Files are written aside and renamed, so whatever
ends the process leaves the last save whole.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from speculant.core.drafter import Drafter, Persistent
from speculant.core.errors import FileError, MemoryFileError, SpeculantError, UnsupportedError
from speculant.serving.scoped_metrics import ScopedMetrics

_LOG = logging.getLogger(__name__)
FileState = tuple[int, int, int]


class MemoryKeeper:
    """Saves the memories of one server.

    Attributes:
        unused: files that could not be used, and why; they are left as they are.
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
        """Load what there is.

        Args:
            drafters: by tenant, "" for the shared one.
            path: of the shared memory; tenants' files stand beside it, with the tenant before the suffix. None to save
                nothing.
            corpus: a memory to begin with where there is no file yet; None for an empty one.
            seconds: between two savings.
            strict: whether a file that cannot be used is an error, rather than a memory that begins empty and is not
                saved.
            metrics: count savings and failures.

        Raises:
            FileError, MemoryFileError: the corpus cannot be used, nor a memory with `strict`, or there is no folder.
            UnsupportedError: the method keeps no memory, or the corpus does not fit.
        """
        self._seconds, self._metrics = seconds, metrics
        self._lock = threading.Lock()
        self._strict = strict
        self._drafters = drafters
        self._paths = {} if path is None else {tenant: tenant_path(path, tenant) for tenant in drafters}
        self._saved: set[str] = set()  # tenants whose memories are saved
        self._known: dict[str, FileState] = {}  # of tenants' files, as they were read or written last
        self.unused: dict[Path, str] = {}
        if path is not None and not path.parent.is_dir():
            raise FileError(f"cannot keep a memory in {path}: there is no folder {path.parent}.")
        for tenant, drafter in drafters.items():
            if not isinstance(drafter, Persistent):
                if path is not None or corpus is not None:
                    raise UnsupportedError(
                        "this drafting method keeps no memory; leave out --memory and --corpus, or use --method mix."
                    )
            else:
                self._begin(tenant, drafter, corpus)
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
                _LOG.warning("%s Drafting begins without it; the file is left as it is, and nothing is saved.", error)
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
        """Save every memory; return whether all of them could be."""
        done = True
        with self._lock:
            for tenant in sorted(self._saved):
                metrics, drafter = self._metrics.of(tenant), self._drafters[tenant]
                assert isinstance(drafter, Persistent)
                try:
                    drafter.save(self._paths[tenant])
                except (SpeculantError, OSError, MemoryError) as error:
                    metrics.save_failures.inc()
                    _LOG.error("the drafter memory was not saved: %s", error)
                    done = False
                else:
                    self._known[tenant] = file_state(self._paths[tenant])
                    metrics.saves.inc()
                    metrics.saved_at.set(time.time())
        return done

    def close(self) -> None:
        """Save every memory for the last time, and say so."""
        if self.save():
            for tenant in sorted(self._saved):
                _LOG.info("memory saved to %s", self._paths[tenant])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Save nothing meanwhile, so that memories and files can be exchanged."""
        with self._lock:
            yield

    def replaced(self, tenant: str) -> Path | None:
        """Return the file of a tenant's memory if another program has replaced it since it was read or written."""
        path = self._paths.get(tenant)
        if path is None or not path.exists() or file_state(path) == self._known.get(tenant):
            return None
        return path

    def accept(self, tenant: str, path: Path) -> None:
        """Save to a file from now on that was read again."""
        self._saved.add(tenant)
        self._known[tenant] = file_state(path)
        self.unused.pop(path, None)
        self._metrics.of(tenant).unused.set(0)


def file_state(path: Path) -> FileState:
    """Return what changes with a file: its number, size and time; zeros where there is none."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def tenant_path(path: Path, tenant: str) -> Path:
    """Return the file of a tenant's memory."""
    return path if not tenant else path.with_name(f"{path.stem}.{tenant}{path.suffix}")


def memory_bytes(drafters: Mapping[str, Drafter], tenant: str | None = None) -> int:
    """Return the bytes that memories take now, of drafters that report them.

    Args:
        drafters: by tenant, "" for the shared one.
        tenant: whose memory and the shared one are counted; None for all.
    """
    own = [drafter for name, drafter in drafters.items() if tenant is None or name in ("", tenant)]
    return sum(getattr(drafter, "memory_bytes", None) or 0 for drafter in own)
