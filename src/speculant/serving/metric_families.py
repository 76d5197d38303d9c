"""Families of Prometheus metrics in one registry: names, labels and buckets, with our own prefix or vLLM's names.

With vLLM's names, dashboards and autoscalers made for vLLM work with this server. Metrics that vLLM does not have keep
our prefix. vLLM's dashboards select shares of requests by its bucket bounds, so these are used along with its names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from speculant.options.serving import OWN_PREFIX, VLLM_PREFIX

MODEL, ENGINE = "model_name", "engine"
LENGTHS = tuple(digit * 10**power for power in range(7) for digit in (1, 2, 5))  # buckets of text lengths, in tokens
STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # buckets of tokens per round
CHOICES = (1, 2, 5, 10, 20)

T = TypeVar("T", bound=MetricWrapperBase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Bucket bounds in seconds: for whole requests and their phases, first tokens, and further tokens."""

    request: tuple[float, ...]
    first: tuple[float, ...]
    token: tuple[float, ...]


OWN_BUCKETS = Buckets(
    request=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600),
    first=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    token=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)
VLLM_BUCKETS = Buckets(
    request=(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),
    first=(
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
        *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
    ),
    token=(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
)


class Families:
    """Creates the metrics of one model in a registry.

    Attributes:
        registry: registry of all metrics.
        vllm: whether vLLM's names are used.
        buckets: bucket bounds of times.
    """

    def __init__(self, model: str, prefix: str) -> None:
        """Create an empty registry; `prefix` is one of `options.serving.METRIC_PREFIXES`."""
        self.registry = CollectorRegistry()
        self.vllm = prefix == VLLM_PREFIX
        self.buckets = VLLM_BUCKETS if self.vllm else OWN_BUCKETS
        self.labels = {MODEL: model} | ({ENGINE: "0"} if self.vllm else {})
        self._prefix = prefix
        self._watched = Watched(self.labels)
        self.registry.register(self._watched)

    def name(self, name: str, *, own: bool = False) -> str:
        """Return the full name of a metric; `own` if vLLM has no such metric."""
        return (OWN_PREFIX if own else self._prefix) + name

    def counter(self, name: str, text: str, *, own: bool = False) -> Counter:
        """Return a counter."""
        return self._add_labels(Counter(self.name(name, own=own), text, list(self.labels), registry=self.registry))

    def counters(self, name: str, text: str, label: str) -> Callable[[str], Counter]:
        """Return a function that returns the counter for a value of an additional label."""
        family = Counter(self.name(name), text, [*self.labels, label], registry=self.registry)
        return lambda value: family.labels(**self.labels, **{label: value})

    def gauge(self, name: str, text: str, *, own: bool = False) -> Gauge:
        """Return a gauge."""
        return self._add_labels(Gauge(self.name(name, own=own), text, list(self.labels), registry=self.registry))

    def histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        """Return a histogram."""
        family = Histogram(self.name(name), text, list(self.labels), registry=self.registry, buckets=buckets)
        return self._add_labels(family)

    def watch(
        self,
        name: str,
        text: str,
        value: Callable[[], float],
        *,
        counts: bool = False,
        own: bool = False,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Add a metric whose value is read at scrape time: a counter if `counts`, else a gauge."""
        self._watched.add(WatchedMetric(self.name(name, own=own), text, value, counts, labels or {}))

    def unwatch(self) -> None:
        """Remove all metrics that are read at scrape time."""
        self._watched.clear()

    def _add_labels(self, metric: T) -> T:
        return metric.labels(**self.labels)


@dataclass(frozen=True, slots=True)
class WatchedMetric:
    """A metric whose value is read at scrape time."""

    name: str
    text: str
    value: Callable[[], float]
    counts: bool
    labels: Mapping[str, str]


class Watched(Collector):
    """Collects metrics read at scrape time; metrics with the same name and different labels form one family."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels, self._metrics = labels, dict[str, list[WatchedMetric]]()

    def add(self, metric: WatchedMetric) -> None:
        """Add a metric to collect."""
        self._metrics.setdefault(metric.name, []).append(metric)

    def clear(self) -> None:
        """Remove all metrics."""
        self._metrics.clear()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the families with their current values."""
        for name, metrics in self._metrics.items():
            labels = [*self._labels, *metrics[0].labels]
            kind = CounterMetricFamily if metrics[0].counts else GaugeMetricFamily
            family = kind(name, metrics[0].text, labels=labels)
            for each in metrics:
                family.add_metric([*self._labels.values(), *each.labels.values()], each.value())
            yield family


class Merged(Collector):
    """Collects several registries as one; metrics with the same name form one family."""

    def __init__(self, registries: Sequence[CollectorRegistry]) -> None:
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        """Yield the families with the samples of all registries."""
        found = dict[str, Metric]()
        for registry in self._registries:
            for family in registry.collect():
                found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                found[family.name].samples += family.samples
        yield from found.values()


def merged_page(registries: Sequence[CollectorRegistry]) -> bytes:
    """Return the metrics of several registries in Prometheus' text format, as if they were one."""
    return generate_latest(registries[0] if len(registries) == 1 else Merged(registries))
