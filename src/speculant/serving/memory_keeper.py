"""Keeps drafter memories on disk: loaded at the start, saved now and then and at the end.

A disk that is full costs a log line and a count, never an answer. Files are written aside and renamed, so whatever
ends the process leaves the last save whole.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from speculant.core.drafter import Drafter, Persistent
from speculant.core.errors import FileError, MemoryFileError, SpeculantError, UnsupportedError
from speculant.serving.metrics import Metrics

_LOG = logging.getLogger(__name__)


class MemoryKeeper:
    """Saves the memories of one server."""

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        path: Path | None,
        *,
        corpus: Path | None,
        seconds: float,
        metrics: Metrics,
    ) -> None:
        """Load what there is.

        Args:
            drafters: by tenant, "" for the shared one.
            path: of the shared memory; tenants' files stand beside it, with the tenant before the suffix. None to save
                nothing.
            corpus: a memory to begin with where there is no file yet; None for an empty one.
            seconds: between two savings.
            metrics: count savings and failures.

        Raises:
            FileError, MemoryFileError: the corpus cannot be used, or the folder does not exist.
            UnsupportedError: the method keeps no memory, or the corpus does not fit.
        """
        self._seconds, self._metrics = seconds, metrics
        self._lock = threading.Lock()
        self._files: dict[Path, Persistent] = {}
        if path is not None and not path.parent.is_dir():
            raise FileError(f"cannot keep a memory in {path}: there is no folder {path.parent}.")
        for tenant, drafter in drafters.items():
            if not isinstance(drafter, Persistent):
                if path is not None or corpus is not None:
                    raise UnsupportedError(
                        "this drafting method keeps no memory; leave out --memory and --corpus, or use --method mix."
                    )
            else:
                self._begin(drafter, None if path is None else tenant_path(path, tenant), corpus)
        metrics.watch("memory_bytes", "Bytes of all drafter memories.", lambda: float(memory_bytes(drafters)))

    def _begin(self, drafter: Persistent, path: Path | None, corpus: Path | None) -> None:
        if path is not None and path.exists():
            try:
                drafter.load(path)
            except (MemoryFileError, FileError, UnsupportedError) as error:
                _LOG.warning("%s Drafting begins without it; the file is left as it is, and nothing is saved.", error)
                return
        elif corpus is not None:
            drafter.load(corpus)
        if path is not None:
            self._files[path] = drafter

    async def run(self) -> None:
        """Save every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            await asyncio.to_thread(self.save)

    def save(self) -> bool:
        """Save every memory; return whether all of them could be."""
        done = True
        with self._lock:
            for path, drafter in self._files.items():
                try:
                    drafter.save(path)
                except (SpeculantError, OSError, MemoryError) as error:
                    self._metrics.save_failures.inc()
                    _LOG.error("the drafter memory was not saved: %s", error)
                    done = False
                else:
                    self._metrics.saves.inc()
                    self._metrics.saved_at.set(time.time())
        return done


def tenant_path(path: Path, tenant: str) -> Path:
    """Return the file of a tenant's memory."""
    return path if not tenant else path.with_name(f"{path.stem}.{tenant}{path.suffix}")


def memory_bytes(drafters: Mapping[str, Drafter]) -> int:
    """Return the bytes that memories take now, of drafters that report them."""
    return sum(getattr(drafter, "memory_bytes", None) or 0 for drafter in drafters.values())
