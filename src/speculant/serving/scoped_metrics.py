"""The metrics of a server: one registry for all, or one for each key, so that a key is shown only its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from speculant.options.serving import OWN_PREFIX
from speculant.serving.exchange import Delta, Ticket
from speculant.serving.metrics import Metrics


class ScopedMetrics:
    """An `Observer` of the engine loop that tells each event to the metrics of its tenant."""

    def __init__(self, model: str, tenants: Sequence[str] = (), *, prefix: str = OWN_PREFIX) -> None:
        """Make metrics of a model: for all requests, or for each tenant and for requests without a valid key."""
        self._all = Metrics(model, prefix)
        self._own = {tenant: Metrics(model, prefix) for tenant in tenants}

    def of(self, tenant: str) -> Metrics:
        """Return the metrics that a tenant may see."""
        return self._own.get(tenant, self._all)

    def watch(
        self, name: str, text: str, value: Callable[[str | None], float], *, counts: bool = False, own: bool = False
    ) -> None:
        """Add a metric that is read when metrics are asked for; `value` takes a tenant, None for all.

        Args:
            name, text: of the metric.
            value: returns it.
            counts: whether it is a counter, else a gauge.
            own: whether vLLM has none such.
        """
        self._all.watch(name, text, lambda: value(None), counts=counts, own=own)
        for tenant, metrics in self._own.items():
            metrics.watch(name, text, partial(value, tenant), counts=counts, own=own)

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
