"""The places of a model: how many texts are decoded or wait, and what each tenant may still take.

A place of the queue is kept for each tenant that has asked within the last minute and has none now, up to half of the
queue, so that no tenant can shut others out. Only a tenant's first text may take such a place.
"""

from __future__ import annotations

import time
from collections import Counter

from speculant.serving.errors import queue_full

_RECENT = 60.0  # seconds for which a tenant's place is kept


class Places:
    """Places by tenant; used by the event loop only."""

    def __init__(self, size: int, queue: int) -> None:
        """Create places for `size` texts that are decoded and `queue` that wait."""
        self._count, self._max_kept = size + queue, queue // 2
        self._used = Counter[str]()
        self._asked = dict[str, float]()  # when each tenant last asked

    def count_used(self, tenant: str | None = None) -> int:
        """Return the number of places in use, by one tenant or by all."""
        return self._used.total() if tenant is None else self._used[tenant]

    def take(self, tenant: str, count: int) -> None:
        """Take places for a tenant's texts.

        Raises:
            ApiError: too few are free.
        """
        now = self._asked[tenant] = time.monotonic()
        others = [other for other, asked in self._asked.items() if other != tenant and now - asked < _RECENT]
        idle = sum(not self._used[other] for other in others)
        kept = min(idle, self._max_kept) if self._used[tenant] or count > 1 else 0
        if self._used.total() + count > self._count - kept:
            raise queue_full(self._count - kept, "texts")
        self._used[tenant] += count

    def release(self, tenant: str, count: int = 1) -> None:
        """Give places back."""
        self._used[tenant] -= count
