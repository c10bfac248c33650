"""What ``/metrics`` shows: this gateway's own counts and times, and the workers' numbers as they are now.

Labels are bounded sets (routes, statuses, reasons, roles, states, guards): no tenant, no id, no text.
Not for: the canonical log line (``logs.py``).
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvfence.runtime.generation import Generations

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_STAGE_BUCKETS = (0.0005, 0.002, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0)
_INTER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class GaugeSource(Protocol):
    """The workers' numbers, read at each scrape. Implemented by the runtime and by fakes in tests."""

    def pool_pages(self) -> Mapping[tuple[str, str, str], int]:
        """(role, worker, page state) -> pages now."""
        ...

    def handoffs(self) -> Mapping[str, int]:
        """Outcome -> hand-offs since the start."""
        ...

    def guard_decisions(self) -> Mapping[tuple[str, str, str], int]:
        """(guard, place, answer) -> times asked since the start; the answer as the recorder words it."""
        ...

    def worker_events(self) -> Mapping[tuple[str, str, str], int]:
        """(role, worker, event) -> times since the start: passes, model errors, frames refused or dropped."""
        ...

    def prefixes(self) -> Mapping[tuple[str, str], int]:
        """(worker, hit_tokens, miss_tokens or evicted_pages) -> count since the start."""
        ...


class GatewayMetrics:
    """Counts and times of one gateway, in a registry of its own."""

    def __init__(self, *, enforcing: bool = True) -> None:
        self.registry = CollectorRegistry()
        obeyed = Gauge("kvfence_enforcing", "1 where every guard is obeyed, 0 with --observe", registry=self.registry)
        obeyed.set(enforcing)
        self._requests = Counter(
            "kvfence_requests",
            "Requests by route, status and reason",
            ("route", "status", "reason"),
            registry=self.registry,
        )
        self._open = Gauge("kvfence_requests_open", "Requests being answered", registry=self.registry)
        self._tokens = Counter(
            "kvfence_tokens",
            "Tokens of answers, and of the prompts that got one",
            ("direction",),
            registry=self.registry,
        )
        self._first_token = Histogram(
            "kvfence_ttft_seconds",
            "From arrival to the first token",
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self._inter_token = Histogram(
            "kvfence_inter_token_seconds",
            "Between tokens of one answer",
            buckets=_INTER_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self._stages = Histogram(
            "kvfence_stage_seconds",
            "Stages of a generation: admit, place, reserve, queue, prefill, transfer, verify, adopt, decode",
            ("stage",),
            buckets=_STAGE_BUCKETS,
            registry=self.registry,
        )

    def request_began(self) -> None:
        """Count a request that is being answered."""
        self._open.inc()

    def request_ended(self, route: str, status: int, reason: str, *, counted: bool = True) -> None:
        """Count an answer. ``counted``: among the open ones since it began."""
        if counted:
            self._open.dec()
        self._requests.labels(route, str(status), reason).inc()

    def tokens(self, num_prompt: int, num_answer: int) -> None:
        """Count the tokens of one request."""
        self._tokens.labels("prompt").inc(num_prompt)
        self._tokens.labels("answer").inc(num_answer)

    def first_token(self, elapsed_s: float) -> None:
        """Note how long the first token took."""
        self._first_token.observe(elapsed_s)

    def inter_token(self, elapsed_s: float) -> None:
        """Note the time since the token before."""
        self._inter_token.observe(elapsed_s)

    def stages(self, lasted_s: Mapping[str, float]) -> None:
        """Note how long each stage of a request took."""
        for stage, seconds in lasted_s.items():
            self._stages.labels(stage).observe(seconds)

    def add_workers(self, generations: Generations, gauges: GaugeSource | None) -> None:
        """Show the workers' numbers too; they are read at each scrape."""
        self.registry.register(_WorkerCollector(generations, gauges))

    def add_spans(self, counts: Mapping[str, int]) -> None:
        """Show what became of spans, by outcome; read at each scrape."""
        self.registry.register(_SpanCollector(counts))

    def render(self) -> bytes:
        """Give all of it in Prometheus' text format."""
        return generate_latest(self.registry)


class _SpanCollector(Collector):
    """Reads the counts of spans when asked."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        spans = CounterMetricFamily("kvfence_spans", "Spans by what became of them", labels=("outcome",))
        for outcome, count in sorted(self._counts.items()):
            spans.add_metric([outcome], count)
        yield spans


class _WorkerCollector(Collector):
    """Reads the workers' numbers when asked. ``describe`` keeps registration from reading them."""

    def __init__(self, generations: Generations, gauges: GaugeSource | None) -> None:
        self._generations = generations
        self._gauges = gauges

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._workers()
        if self._gauges is not None:
            yield from _collect_gauges(self._gauges)

    def _workers(self) -> Iterator[Metric]:
        labels = ("role", "worker")
        ready = GaugeMetricFamily("kvfence_worker_ready", "1 where the worker is ready", labels=labels)
        restarts = CounterMetricFamily("kvfence_worker_restarts", "Restarts of a worker", labels=labels)
        for worker in self._generations.workers():
            ready.add_metric([worker.role, worker.worker], float(worker.state == "ready"))
            restarts.add_metric([worker.role, worker.worker], worker.num_restarts)
        yield ready
        yield restarts


def _collect_gauges(gauges: GaugeSource) -> Iterator[Metric]:
    pages = GaugeMetricFamily("kvfence_pool_pages", "KV pages by worker and state", labels=("role", "worker", "state"))
    for labels, count in sorted(gauges.pool_pages().items()):
        pages.add_metric(list(labels), count)
    yield pages
    handoffs = CounterMetricFamily("kvfence_handoffs", "Hand-offs by outcome", labels=("outcome",))
    for outcome, count in sorted(gauges.handoffs().items()):
        handoffs.add_metric([outcome], count)
    yield handoffs
    decisions = CounterMetricFamily(
        "kvfence_guard_decisions", "Answers of guards, by place", labels=("guard", "place", "answer")
    )
    for labels, count in sorted(gauges.guard_decisions().items()):
        decisions.add_metric(list(labels), count)
    yield decisions
    events = CounterMetricFamily(
        "kvfence_worker_events", "Passes, model errors, frames refused or dropped", labels=("role", "worker", "event")
    )
    for labels, count in sorted(gauges.worker_events().items()):
        events.add_metric(list(labels), count)
    yield events
    yield from _collect_prefixes(gauges.prefixes())


def _collect_prefixes(prefixes: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
    tokens = CounterMetricFamily(
        "kvfence_prefix_tokens",
        "Tokens of prompts at prefill: found in pages of the same tenant (hit), or computed (miss)",
        labels=("worker", "outcome"),
    )
    evicted = CounterMetricFamily("kvfence_prefix_evicted_pages", "Cached pages that made room", labels=("worker",))
    for (worker, counted), count in sorted(prefixes.items()):
        if counted == "evicted_pages":
            evicted.add_metric([worker], count)
        else:
            tokens.add_metric([worker, counted.removesuffix("_tokens")], count)
    yield tokens
    yield evicted
