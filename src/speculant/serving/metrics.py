"""Prometheus metrics of one server or tenant: times of requests, drafting, and how requests ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter

from speculant.options.serving import OWN_PREFIX
from speculant.serving.exchange import Delta, Ticket
from speculant.serving.metric_families import CHOICES, LENGTHS, STEP, Families


@dataclass(slots=True)
class Counted:
    """What has already been counted of a text: rounds with drafts, nodes, accepted tokens by depth, tokens."""

    drafts: int = 0
    drafted: int = 0
    accepted: list[int] = field(default_factory=list)
    tokens: int = 0


class Metrics:
    """The metrics of one server, in a registry of its own; an `Observer` of its engine loop."""

    def __init__(self, model: str, prefix: str = OWN_PREFIX) -> None:
        """Register all metrics, labelled with the model's name; `prefix` selects their names."""
        self._families = families = Families(model, prefix)
        self._counts: dict[Ticket, Counted] = {}
        self._step_tokens = 0  # of the round that is delivered
        seconds = families.buckets
        counter, histogram = families.counter, families.histogram
        self._drafts = counter("spec_decode_num_drafts", "Drafts that were verified.")
        self._drafted = counter("spec_decode_num_draft_tokens", "Draft nodes that were verified.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Draft nodes that were accepted.")
        self._by_depth = families.counters(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by depth of the draft.", "position"
        )
        self._positions: list[Counter] = []
        self._prompt = counter("prompt_tokens", "Prompt tokens of admitted requests.")
        self._generated = counter("generation_tokens", "Tokens generated.")
        self._finished = families.counters("request_success", "Texts by how they ended.", "finished_reason")
        self._failed = counter("request_failures", "Texts that ended by an error or a limit.", own=True)
        self._cancelled = counter("request_cancellations", "Texts whose client left or was too slow.", own=True)
        self._first = histogram("time_to_first_token_seconds", "From arrival to the first token.", seconds.first)
        self._between = histogram(
            "inter_token_latency_seconds", "Seconds of a round per token that it added to a text.", seconds.token
        )
        self._whole = histogram("e2e_request_latency_seconds", "From arrival to the last token.", seconds.request)
        queued = seconds.request if families.vllm else seconds.first
        self._queued = histogram("request_queue_time_seconds", "From arrival to admission.", queued)
        self._prefilled = histogram(
            "request_prefill_time_seconds", "From admission to the first token.", seconds.request
        )
        self._decoded = histogram("request_decode_time_seconds", "From the first token to the last.", seconds.request)
        self._worked = histogram("request_inference_time_seconds", "From admission to the last token.", seconds.request)
        self._per_token = histogram(
            "request_time_per_output_token_seconds", "Mean seconds of a text's tokens after the first.", seconds.token
        )
        self._prompt_lengths = histogram("request_prompt_tokens", "Prompt tokens of a text.", LENGTHS)
        self._lengths = histogram("request_generation_tokens", "Generated tokens of a text.", LENGTHS)
        self._longest = histogram(
            "request_max_num_generation_tokens", "Generated tokens of a request's longest text.", LENGTHS
        )
        self._asked = histogram("request_params_max_tokens", "Tokens that a text might have.", LENGTHS)
        self._choices = histogram("request_params_n", "Texts of a request.", CHOICES)
        self._steps = histogram("iteration_tokens_total", "Tokens of prompts and texts between two rounds.", STEP)
        self._batch = families.gauge("batch_size", "Texts in the last round.", own=True)
        self._rounds = counter("rounds", "Rounds of the batch.", own=True)
        self._answers = _http_counter(families)
        self.saves = counter("memory_saves", "Times that a drafter memory was saved.", own=True)
        self.save_failures = counter("memory_save_failures", "Times that it could not be saved.", own=True)
        self.saved_at = families.gauge("memory_saved_timestamp_seconds", "When it was saved last.", own=True)
        self.unused = families.gauge(
            "memory_unused", "1 where its file could not be used, so that nothing is saved.", own=True
        )
        if families.vllm:
            self._add_constants()

    def watch(
        self, name: str, text: str, value: Callable[[], float], *, counts: bool = False, own: bool = False
    ) -> None:
        """Add a metric whose value is read at scrape time: a counter if `counts`, else a gauge."""
        self._families.watch(name, text, value, counts=counts, own=own)
        if self._families.vllm and name == "num_requests_waiting":
            for reason, count in (("capacity", value), ("deferred", _zero)):
                self._families.watch(f"{name}_by_reason", "Texts by why they wait.", count, labels={"reason": reason})

    def drafting(self) -> tuple[int, int]:
        """Return the number of drafts verified, and of those whose first token was accepted."""
        name, labels = self._families.name, self._families.labels
        sample = self._families.registry.get_sample_value
        hits = sample(name("spec_decode_num_accepted_tokens_per_pos_total"), labels | {"position": "0"})
        return int(sample(name("spec_decode_num_drafts_total"), labels) or 0), int(hits or 0)

    @property
    def registry(self) -> CollectorRegistry:
        """The registry of all metrics."""
        return self._families.registry

    def unwatch(self) -> None:
        """Remove all metrics that are read at scrape time, when the model is unloaded."""
        self._families.unwatch()
        if self._families.vllm:
            self._add_constants()

    def answered(self, method: str, path: str, status: int) -> None:
        """Count an HTTP request."""
        self._answers(method, path, status)

    def admitted(self, ticket: Ticket) -> None:
        self._queued.observe(ticket.admitted - ticket.submitted)
        self._prompt.inc(len(ticket.job.prompt))
        self._counts[ticket] = Counted()

    def added(self, ticket: Ticket, delta: Delta) -> None:
        now, counted = time.monotonic(), self._counts.get(ticket)
        if delta.tokens:
            if not ticket.last_token:
                self._first.observe(now - ticket.submitted)
                self._step_tokens += len(ticket.job.prompt)
                ticket.first_token = now
            else:
                self._between.observe((now - ticket.last_token) / delta.tokens)
            ticket.last_token = now
            self._generated.inc(delta.tokens)
            self._step_tokens += delta.tokens
            if counted is not None:
                counted.tokens += delta.tokens
        if counted is not None:
            self._count_drafts(ticket, counted)
        if delta.last:
            self._counts.pop(ticket, None)
            self._end(ticket, delta, counted, now)

    def cancelled(self, ticket: Ticket) -> None:
        self._cancelled.inc()
        if self._families.vllm:
            self._finished("abort").inc()

    def decoded(self, tickets: Sequence[Ticket]) -> None:
        self._batch.set(len(tickets))
        self._rounds.inc()
        if self._step_tokens:  # of the previous round, which has been delivered
            self._steps.observe(self._step_tokens)
            self._step_tokens = 0

    def _end(self, ticket: Ticket, delta: Delta, counted: Counted | None, now: float) -> None:
        """Count a text that has ended."""
        if delta.error is not None:
            if not ticket.cancelled:  # cancellations have a counter of their own
                self._failed.inc()
                if self._families.vllm:
                    self._finished("error").inc()
            return
        tokens = 0 if counted is None else counted.tokens
        self._finished(str(delta.finish_reason)).inc()
        self._whole.observe(now - ticket.submitted)
        self._prompt_lengths.observe(len(ticket.job.prompt))
        self._lengths.observe(tokens)
        self._asked.observe(ticket.job.options.get("max_new_tokens", tokens))
        if ticket.first_token:
            decoding = ticket.last_token - ticket.first_token
            self._prefilled.observe(ticket.first_token - ticket.admitted)
            self._decoded.observe(decoding)
            self._worked.observe(ticket.last_token - ticket.admitted)
            self._per_token.observe(decoding / (tokens - 1) if tokens > 1 else 0.0)
        lengths = ticket.exchange.lengths
        lengths.append(tokens)
        if len(lengths) == ticket.exchange.places:
            self._choices.observe(len(lengths))
            self._longest.observe(max(lengths))

    def _count_drafts(self, ticket: Ticket, counted: Counted) -> None:
        """Count the increase of the text's statistics since the last call."""
        stats = ticket.stats
        if stats is None or counted.drafted == stats.drafted:
            return
        drafts, accepted, known = stats.offered_by_depth[0], stats.accepted_by_depth, counted.accepted
        self._drafts.inc(drafts - counted.drafts)
        self._drafted.inc(stats.drafted - counted.drafted)
        counted.drafts, counted.drafted = drafts, stats.drafted
        known += [0] * (len(accepted) - len(known))
        while len(self._positions) < len(accepted):
            self._positions.append(self._by_depth(str(len(self._positions))))
        for depth, count in enumerate(accepted):
            if count == known[depth]:
                break  # deeper nodes are accepted only below an accepted one
            self._accepted.inc(count - known[depth])
            self._positions[depth].inc(count - known[depth])
            known[depth] = count

    def _add_constants(self) -> None:
        """Add metrics that vLLM's dashboards query and that are constant in this server."""
        watch = self._families.watch
        watch("num_preemptions", "Texts that gave their room to others: none ever does.", _zero, counts=True)
        for state, value in (("awake", _one), ("weights_offloaded", _zero), ("discard_all", _zero)):
            watch("engine_sleep_state", "1 of the state that the engine is in.", value, labels={"sleep_state": state})


def _http_counter(families: Families) -> Callable[[str, str, int], None]:
    """Return a function that counts an HTTP request: by path and status, or like vLLM's instrumentation."""
    if not families.vllm:
        own = Counter(families.name("http_requests"), "HTTP requests.", ("path", "status"), registry=families.registry)
        return lambda _, path, status: own.labels(path, str(status)).inc()
    labels = ("handler", "method", "status")
    vllms = Counter("http_requests", "HTTP requests.", labels, registry=families.registry)
    return lambda method, path, status: vllms.labels(path, method, f"{status // 100}xx").inc()


def _zero() -> float:
    return 0.0


def _one() -> float:
    return 1.0
