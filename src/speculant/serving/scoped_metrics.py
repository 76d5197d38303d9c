"""The metrics of a server: one registry for all, or one for each key, so that a key is shown only its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from speculant.serving.exchange import Delta, Ticket
from speculant.serving.metrics import Metrics


class ScopedMetrics:
    """An `Observer` of the engine loop that tells each event to the metrics of its tenant."""

    def __init__(self, model: str, tenants: Sequence[str] = ()) -> None:
        """Make metrics of a model: for all requests, or for each tenant and for requests without a valid key."""
        self._all = Metrics(model)
        self._own = {tenant: Metrics(model) for tenant in tenants}

    def of(self, tenant: str) -> Metrics:
        """Return the metrics that a tenant may see."""
        return self._own.get(tenant, self._all)

    def watch(self, name: str, text: str, value: Callable[[str | None], float]) -> None:
        """Add a gauge that is read when metrics are asked for; `value` takes a tenant, None for all."""
        self._all.watch(name, text, lambda: value(None))
        for tenant, metrics in self._own.items():
            metrics.watch(name, text, lambda tenant=tenant: value(tenant))  # type: ignore[misc]

    def admitted(self, ticket: Ticket) -> None:
        self.of(ticket.job.tenant).admitted(ticket)

    def added(self, ticket: Ticket, delta: Delta) -> None:
        self.of(ticket.job.tenant).added(ticket, delta)

    def cancelled(self, ticket: Ticket) -> None:
        self.of(ticket.job.tenant).cancelled(ticket)

    def decoded(self, tickets: Sequence[Ticket]) -> None:
        by_metrics: dict[int, tuple[Metrics, list[Ticket]]] = {}
        for ticket in tickets:
            metrics = self.of(ticket.job.tenant)
            by_metrics.setdefault(id(metrics), (metrics, []))[1].append(ticket)
        for metrics, own in by_metrics.values():
            metrics.decoded(own)
