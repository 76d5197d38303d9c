"""The memory file of a drafter inside an engine: read at start, saved in the background and at exit.

Engines end their workers in several ways. At a normal exit, and when a worker is asked to end, learned data is saved; a
killed worker loses what it learned since the last background save. Files are replaced atomically, see `memory.file`, so
they are never damaged.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path

from speculant.core.drafter import Drafter, Loadable, Persistent
from speculant.core.errors import SpeculantError

logger = logging.getLogger(__name__)


def load_memory(drafter: Drafter, *, memory: Path | None, corpus: Path | None) -> bool:
    """Load the memory file, or the corpus if there is none yet; return whether saving is safe.

    An unusable memory file is logged and kept: the engine decodes anyway, and nothing is saved over a file that may
    still be wanted.

    Raises:
        MemoryFileError, FileError, UnsupportedError: the corpus cannot be used.
    """
    if not isinstance(drafter, Persistent):
        if corpus is not None and isinstance(drafter, Loadable):
            drafter.load(corpus)
        return False
    if memory is not None and memory.exists():
        try:
            drafter.load(memory)
        except SpeculantError as error:
            logger.error("%s Drafting begins with an empty memory, and nothing will be saved.", error)
            return False
    elif corpus is not None:
        drafter.load(corpus)
    return True


class BackgroundSaver:
    """Saves a drafter's memory to a file from a thread, and a last time at the end of the process."""

    def __init__(
        self,
        drafter: Persistent,
        path: Path,
        *,
        every: float,
        learned: Callable[[], int],
        finish: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the thread.

        Args:
            drafter: the drafter whose memory is saved.
            path: path of the file.
            every: seconds between saves.
            learned: returns a counter that increases when there is something to save.
            finish: called before the last save; ends running requests, so that they are learned.
        """
        self._drafter, self._path, self._learned, self._finish = drafter, path, learned, finish
        self._saved, self._failed = learned(), False
        self._lock, self._ended = threading.Lock(), threading.Event()
        # Workers are multiprocessing processes, which end without running `atexit`; a Finalize runs in both cases.
        self._at_exit = Finalize(self, _save_last, args=(weakref.ref(self),), exitpriority=10)
        self._thread = threading.Thread(target=self._run, args=(every,), name="speculant-save", daemon=True)
        self._thread.start()

    def save(self) -> None:
        """Save now if anything was learned since the last save; repeated failures are logged once."""
        with self._lock:
            learned = self._learned()
            if learned == self._saved:
                return
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._drafter.save(self._path)
            except (SpeculantError, OSError) as error:
                if not self._failed:
                    logger.error("the memory was not saved: %s", error)
                self._failed = True
                return
            self._saved, self._failed = learned, False

    def close(self) -> None:
        """Save a last time and end the thread."""
        self._ended.set()
        self._at_exit.cancel()
        self._finish()
        self.save()

    def _run(self, every: float) -> None:
        while not self._ended.wait(every):
            self.save()


def _save_last(reference: weakref.ref[BackgroundSaver]) -> None:
    saver = reference()
    if saver is not None:
        saver.close()
