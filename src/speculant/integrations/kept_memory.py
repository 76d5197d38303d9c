"""The memory file of a drafter inside an engine: read at the start, saved in the background and at exit.

Engines end their workers in several ways. At a normal exit, and where a worker is asked to end, what was learned is
saved; a worker that is killed loses what it learned since the last save in the background. Files are written aside
and renamed, see `memory.file`, so none of this can damage one.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path

from speculant.core.drafter import Drafter, Persistent
from speculant.core.errors import SpeculantError

logger = logging.getLogger(__name__)


def load_memory(drafter: Drafter, *, memory: Path | None, corpus: Path | None) -> bool:
    """Begin with the memory file, or with the corpus where there is none yet; return whether saving is safe.

    A memory file that cannot be used is logged and kept as it is: the engine decodes all the same, and nothing is saved
    over a file that may still be wanted.

    Raises:
        MemoryFileError, FileError, UnsupportedError: the corpus cannot be used.
    """
    if not isinstance(drafter, Persistent):
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
    """Saves a drafter's memory to a file from a thread, and once more at the end of the process."""

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
            drafter: whose memory it is.
            path: the file.
            every: seconds between saves.
            learned: returns a count that grows when there is something to save.
            finish: is called before the last save; ends the requests that still run, so that they are learned.
        """
        self._drafter, self._path, self._learned, self._finish = drafter, path, learned, finish
        self._saved, self._failed = learned(), False
        self._lock, self._ended = threading.Lock(), threading.Event()
        # Workers are processes of multiprocessing, which end without running `atexit`; a Finalize runs in both cases.
        self._at_exit = Finalize(self, _save_last, args=(weakref.ref(self),), exitpriority=10)
        self._thread = threading.Thread(target=self._run, args=(every,), name="speculant-save", daemon=True)
        self._thread.start()

    def save(self) -> None:
        """Save now, if anything was learned since the last time; a failure is logged, once until it works again."""
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
        """Save for the last time and end the thread."""
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
