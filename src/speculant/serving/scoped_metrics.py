"""The metrics of a server: one registry for all, or one per key, so that each key sees only its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from speculant.options.serving import OWN_PREFIX
from speculant.serving.engine_loop import EngineLoop
from speculant.serving.exchange import Delta, Ticket
from speculant.serving.metrics import Metrics


class ScopedMetrics:
    """An `Observer` of the engine loop that forwards each event to the metrics of its tenant."""

    def __init__(self, model: str, tenants: Sequence[str] = (), *, prefix: str = OWN_PREFIX) -> None:
        """Create metrics of a model: for all requests, or per tenant and for requests without a valid key."""
        self._all = Metrics(model, prefix)
        self._own = {tenant: Metrics(model, prefix) for tenant in tenants}

    def of(self, tenant: str) -> Metrics:
        """Return the metrics that a tenant may see."""
        return self._own.get(tenant, self._all)

    def watch(
        self, name: str, text: str, value: Callable[[str | None], float], *, counts: bool = False, own: bool = False
    ) -> None:
        """Add a metric whose value is read at scrape time.

        Args:
            name, text: name and help text of the metric.
            value: returns its value for a tenant, or for all if None.
            counts: whether it is a counter; otherwise a gauge.
            own: whether vLLM has no such metric.
        """
        self._all.watch(name, text, lambda: value(None), counts=counts, own=own)
        for tenant, metrics in self._own.items():
            metrics.watch(name, text, partial(value, tenant), counts=counts, own=own)

    def unwatch(self) -> None:
        """Remove the metrics that `watch` added, when the model is unloaded."""
        for metrics in (self._all, *self._own.values()):
            metrics.unwatch()

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


def watch_engine(metrics: ScopedMetrics, engine: EngineLoop, *, room: int) -> None:
    """Add metrics of the state of an engine.

    Args:
        metrics: metrics to add to.
        engine: the engine to read.
        room: total tokens of all texts decoded together if each has its maximum length.
    """
    watch, prefixes = metrics.watch, engine.prefixes
    watch("num_requests_running", "Texts that are decoded.", engine.running)
    watch("num_requests_waiting", "Texts that wait.", engine.waiting)
    watch("kv_cache_usage_perc", "Share of the room for texts in use.", lambda own: engine.cached_tokens(own) / room)
    watch("prefix_cache_queries", "Prompt tokens looked up.", lambda own: prefixes(own).lookup_tokens, counts=True)
    watch("prefix_cache_hits", "Of those, tokens found.", lambda own: prefixes(own).reused_tokens, counts=True)
    watch("prompt_tokens_cached", "Prompt tokens not computed.", lambda own: prefixes(own).reused_tokens, counts=True)
    watch("prefix_cache_bytes", "What it holds.", lambda own: prefixes(own).bytes, own=True)
