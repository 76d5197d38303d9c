"""The queue of a model: texts that wait for a place in the batch, shared fairly between keys.

A place that becomes free goes to the key with the fewest texts being decoded, among equals to the one whose turn was
longest ago, or that had none: max-min fairness of places. So the single text of a key is next, however many texts of
other keys wait. The texts of one key leave in order of priority, then of arrival.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from itertools import count

from speculant.serving.exchange import Ticket


class WaitingTexts:
    """Texts that wait, by tenant."""

    def __init__(self) -> None:
        self._tenants: dict[str, list[Ticket]] = {}  # none is empty
        self._turns: dict[str, int] = {}  # number of each tenant's last turn, also of those without waiting texts
        self._numbers = count()

    def add(self, ticket: Ticket) -> None:
        """Add a text behind those of its tenant whose priority is at least as urgent."""
        insort(self._tenants.setdefault(ticket.job.tenant, []), ticket, key=lambda each: each.job.priority)

    def take(self, decoded: Mapping[str, int]) -> Ticket:
        """Remove the next text and return it.

        Args:
            decoded: number of texts being decoded, by tenant; 0 for tenants that are not in it.

        Raises:
            ValueError: no text waits.
        """
        tenant = min(self._tenants, key=lambda each: (decoded.get(each, 0), self._turns.get(each, -1)))
        ticket = self._tenants[tenant][0]
        self._turns[tenant] = next(self._numbers)
        self.discard(ticket)
        return ticket

    def discard(self, ticket: Ticket) -> None:
        """Remove a text, if it waits."""
        tickets = self._tenants.get(ticket.job.tenant, [])
        if ticket in tickets:
            tickets.remove(ticket)
            if not tickets:
                del self._tenants[ticket.job.tenant]

    def __iter__(self) -> Iterator[Ticket]:
        """Return an iterator over the waiting texts, by tenant."""
        return (ticket for tickets in self._tenants.values() for ticket in tickets)

    def __len__(self) -> int:
        """Return the number of waiting texts."""
        return sum(map(len, self._tenants.values()))
