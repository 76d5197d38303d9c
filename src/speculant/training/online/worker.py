"""The thread that runs updates, so that no round waits for one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from speculant.training.online.updates import Update, Updater

logger = logging.getLogger(__name__)
MAX_FAULTS = 3  # consecutive failures that end updates


class Worker:
    """Runs requested updates; the thread starts with the first.

    Attributes:
        updates: reports of the last 256 updates.
    """

    def __init__(self, updater: Updater, *, idle: bool) -> None:
        """Take the updater.

        Args:
            updater: an updater used only by this worker.
            idle: whether steps wait while requests are open.
        """
        self.updates: list[Update] = []
        self._updater, self._idle = updater, idle
        self._condition, self._running = threading.Condition(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._asked, self._open, self._closed, self._faults = False, 0, False, 0

    @property
    def busy(self) -> bool:
        """Whether an update is requested or running."""
        return self._asked or self._running.locked()

    def change_open(self, change: int) -> None:
        """Change the count of open requests."""
        with self._condition:
            self._open += change
            self._condition.notify_all()

    def ask(self) -> None:
        """Request an update; return at once."""
        with self._condition:
            if self._closed or self._faults >= MAX_FAULTS:
                return
            self._asked = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="speculant-online", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def run(self, proceed: Callable[[], bool] = lambda: True) -> Update | None:
        """Run an update now; exceptions become part of its report, since text does not depend on it."""
        with self._running:
            try:
                done = self._updater.update(proceed)
                self._faults = 0
            except Exception as error:
                self._faults += 1
                done = Update(error=f"{type(error).__name__}: {error}")
                end = "; no more are made" if self._faults >= MAX_FAULTS else ""
                logger.warning("an update of the drafter failed and was dropped%s: %s", end, done.error)
            if done is not None:
                self.updates = [*self.updates[-255:], done]
            return done

    def start_anew(self) -> None:
        """Continue from the drafting weights after others were loaded."""
        with self._running:
            self._updater.reset()

    def close(self) -> None:
        """End the thread after its current step."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closed or (self._asked and self._ready()))
                if self._closed:
                    return
                self._asked = False
            self.run(self._proceed)

    def _ready(self) -> bool:
        return not (self._idle and self._open)

    def _proceed(self) -> bool:
        """Wait until a step may run; return False if the thread should end."""
        with self._condition:
            self._condition.wait_for(lambda: self._closed or self._ready())
            return not self._closed
