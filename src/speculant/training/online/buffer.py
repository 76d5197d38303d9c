"""The training data: windows of recent texts, bounded in bytes. One in five is held out to evaluate updates."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from speculant.core.tree import Array
from speculant.training.online.window import TextWindow

HELD_OUT = 5  # one window in this many


class WindowBuffer:
    """A bounded store of windows, evicting the oldest first. Thread-safe.

    Attributes:
        limit: maximum bytes of the windows.
        added: number of windows added so far.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.added = limit, 0
        self._windows: deque[tuple[int, TextWindow]] = deque()  # with their numbers
        self._size, self._lock = 0, threading.Lock()

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def size(self) -> int:
        """The size of the windows in bytes."""
        return self._size

    def add(self, window: TextWindow) -> None:
        """Add a window; one larger than the limit is skipped."""
        with self._lock:
            number, self.added = self.added, self.added + 1
            if window.size > self.limit:
                return
            self._windows.append((number, window))
            self._size += window.size
            while self._size > self.limit:
                self._size -= self._windows.popleft()[1].size

    def split(self) -> tuple[list[tuple[int, TextWindow]], list[TextWindow]]:
        """Return the windows to train on, with their numbers, and those held out, oldest first."""
        with self._lock:
            windows = list(self._windows)
        train = [(number, window) for number, window in windows if number % HELD_OUT != 1]
        return train, [window for number, window in windows if number % HELD_OUT == 1]

    def arrays(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the contents for a memory file: the arrays of all windows, concatenated by name, and facts."""
        with self._lock:
            windows, added = list(self._windows), self.added
        names = list(windows[0][1].arrays()) if windows else []
        joined = {name: np.concatenate([window.arrays()[name] for _, window in windows]) for name in names}
        joined["lengths"] = np.array([len(window.tokens) for _, window in windows], np.int32)
        joined["numbers"] = np.array([number for number, _ in windows], np.int64)
        joined["greedy"] = np.array([window.greedy for _, window in windows], np.bool_)
        return joined, {"added": added}

    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Replace the windows by those in a memory file; of these, the latest that fit."""
        lengths, numbers, greedy = (arrays[name].tolist() for name in ("lengths", "numbers", "greedy"))
        rest = {name: array for name, array in arrays.items() if name not in ("lengths", "numbers", "greedy")}
        ends = np.cumsum([0, *lengths]).tolist()
        with self._lock:
            self._windows.clear()
            self._size, self.added = 0, int(facts["added"])
            for place in reversed(range(len(lengths))):
                cut = {name: array[ends[place] : ends[place + 1]] for name, array in rest.items()}
                window = TextWindow.of(cut, greedy=bool(greedy[place]))
                if self._size + window.size > self.limit:
                    break
                self._windows.appendleft((numbers[place], window))
                self._size += window.size
