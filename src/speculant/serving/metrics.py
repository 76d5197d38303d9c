"""Prometheus metrics under `speculant_`, with vLLM's suffixes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from speculant.serving.exchange import Delta, Ticket

PREFIX = "speculant_"
LATENCY = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
FIRST = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
MODEL = "model_name"

T = TypeVar("T", bound=MetricWrapperBase)


class Metrics:
    """The metrics of one server, in a registry of its own; an `Observer` of its engine loop."""

    def __init__(self, model: str) -> None:
        """Register every metric, labelled with the model's name."""
        self.registry = CollectorRegistry()
        self._model = model
        self._counts: dict[Ticket, list[int]] = {}  # rounds with drafts, nodes, accepted by depth; already counted
        self._drafts = self._counter("spec_decode_num_drafts", "Drafts that were verified.")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Draft nodes that were verified.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Draft nodes that were accepted.")
        self._by_depth = self._family(
            Counter, "spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by depth of the draft.", "position"
        )
        self._positions: list[Counter] = []
        self._prompt = self._counter("prompt_tokens", "Prompt tokens of admitted requests.")
        self._generated = self._counter("generation_tokens", "Tokens generated.")
        self._finished = self._family(Counter, "request_success", "Texts by how they ended.", "finished_reason")
        self._failed = self._counter("request_failures", "Texts that ended by an error or a limit.")
        self._cancelled = self._counter("request_cancellations", "Texts whose client left or was too slow.")
        self._first = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", FIRST)
        self._between = self._histogram(
            "inter_token_latency_seconds", "Seconds of a round per token that it added to a text.", TOKEN
        )
        self._whole = self._histogram("e2e_request_latency_seconds", "From arrival to the last token.", LATENCY)
        self._queued = self._histogram("request_queue_time_seconds", "From arrival to admission.", FIRST)
        self._batch = self._gauge("batch_size", "Texts in the last round.")
        self._rounds = self._counter("rounds", "Rounds of the batch.")
        self._answers = Counter(f"{PREFIX}http_requests", "HTTP requests.", ("path", "status"), registry=self.registry)
        self.saves = self._counter("memory_saves", "Times that a drafter memory was saved.")
        self.save_failures = self._counter("memory_save_failures", "Times that it could not be saved.")
        self.saved_at = self._gauge("memory_saved_timestamp_seconds", "When it was saved last.")
        self.unused = self._gauge("memory_unused", "1 where its file could not be used, so that nothing is saved.")

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge that is read when metrics are asked for."""
        self._gauge(name, text).set_function(value)

    def drafting(self) -> tuple[int, int]:
        """Return how many drafts were verified, and of how many the first token was accepted."""
        hits = self.registry.get_sample_value(
            f"{PREFIX}spec_decode_num_accepted_tokens_per_pos_total", {MODEL: self._model, "position": "0"}
        )
        drafts = self.registry.get_sample_value(f"{PREFIX}spec_decode_num_drafts_total", {MODEL: self._model})
        return int(drafts or 0), int(hits or 0)

    def page(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def answered(self, path: str, status: int) -> None:
        """Count an HTTP request."""
        self._answers.labels(path, str(status)).inc()

    def admitted(self, ticket: Ticket) -> None:
        self._queued.observe(ticket.admitted - ticket.submitted)
        self._prompt.inc(len(ticket.job.prompt))
        self._counts[ticket] = [0, 0]

    def added(self, ticket: Ticket, delta: Delta) -> None:
        now = time.monotonic()
        if delta.tokens:
            if not ticket.last_token:
                self._first.observe(now - ticket.submitted)
            else:
                self._between.observe((now - ticket.last_token) / delta.tokens)
            ticket.last_token = now
            self._generated.inc(delta.tokens)
        self._count_drafts(ticket)
        if delta.last:
            self._counts.pop(ticket, None)
            if delta.error is not None:
                self._failed.inc()
            else:
                self._finished.labels(self._model, str(delta.finish_reason)).inc()
                self._whole.observe(now - ticket.submitted)

    def cancelled(self, ticket: Ticket) -> None:
        self._cancelled.inc()

    def decoded(self, tickets: Sequence[Ticket]) -> None:
        self._batch.set(len(tickets))
        self._rounds.inc()

    def _count_drafts(self, ticket: Ticket) -> None:
        """Count what the text's statistics have more than when they were last looked at."""
        counted, stats = self._counts.get(ticket), ticket.stats
        if counted is None or stats is None or counted[1] == stats.drafted:
            return
        drafts, accepted = stats.offered_by_depth[0], stats.accepted_by_depth
        self._drafts.inc(drafts - counted[0])
        self._drafted.inc(stats.drafted - counted[1])
        counted[0], counted[1] = drafts, stats.drafted
        counted += [0] * (len(accepted) - len(counted) + 2)
        while len(self._positions) < len(accepted):
            self._positions.append(self._by_depth.labels(self._model, str(len(self._positions))))
        for depth, count in enumerate(accepted):
            if count == counted[depth + 2]:
                break  # deeper ones are accepted only below it
            self._accepted.inc(count - counted[depth + 2])
            self._positions[depth].inc(count - counted[depth + 2])
            counted[depth + 2] = count

    def _family(self, kind: type[Counter], name: str, text: str, label: str) -> Counter:
        return kind(PREFIX + name, text, (MODEL, label), registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return self._label(Counter(PREFIX + name, text, (MODEL,), registry=self.registry))

    def _gauge(self, name: str, text: str) -> Gauge:
        return self._label(Gauge(PREFIX + name, text, (MODEL,), registry=self.registry))

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return self._label(Histogram(PREFIX + name, text, (MODEL,), registry=self.registry, buckets=buckets))

    def _label(self, metric: T) -> T:
        return metric.labels(self._model)
