"""Channels in one process, for tests."""

from __future__ import annotations

import queue
from contextlib import suppress
from dataclasses import replace

from speculant.sharing.channel import SharedTokens


class LocalChannel:
    """Delivers to other channels of the process; keeps what was published."""

    def __init__(self, replica: int = 1) -> None:
        self.replica, self.others, self.published = replica, list[LocalChannel](), list[SharedTokens]()
        self.closed = False
        self._inbox: queue.SimpleQueue[SharedTokens] = queue.SimpleQueue()

    def publish(self, piece: SharedTokens) -> None:
        piece = replace(piece, replica=self.replica)
        self.published.append(piece)
        for other in self.others:
            other.deliver(piece)

    def deliver(self, piece: SharedTokens) -> None:
        """Take a piece as if it came from elsewhere."""
        self._inbox.put(piece)

    def poll(self, timeout: float) -> list[SharedTokens]:
        with suppress(queue.Empty):
            return [self._inbox.get(timeout=min(timeout, 0.02))]
        return []

    def close(self) -> None:
        self.closed = True
