"""The metrics of a server: one registry for all, or one for each key, so that a key is shown only its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from speculant.options.serving import OWN_PREFIX
from speculant.serving.engine_loop import EngineLoop
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

    def unwatch(self) -> None:
        """Leave out what `watch` added, of a model that is unloaded."""
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
    """Have the state of an engine be read with the metrics.

    Args:
        metrics: get it.
        engine: is asked.
        room: tokens of all texts that are decoded together, where each is as long as it may be.
    """
    watch, prefixes = metrics.watch, engine.prefixes
    watch("num_requests_running", "Texts that are decoded.", engine.running)
    watch("num_requests_waiting", "Texts that wait.", engine.waiting)
    watch("kv_cache_usage_perc", "Share of the room for texts in use.", lambda own: engine.cached_tokens(own) / room)
    watch("prefix_cache_queries", "Prompt tokens looked up.", lambda own: prefixes(own).lookup_tokens, counts=True)
    watch("prefix_cache_hits", "Of those, tokens found.", lambda own: prefixes(own).reused_tokens, counts=True)
    watch("prompt_tokens_cached", "Prompt tokens not computed.", lambda own: prefixes(own).reused_tokens, counts=True)
    watch("prefix_cache_bytes", "What it holds.", lambda own: prefixes(own).bytes, own=True)
