"""The guard's counts on their way to vLLM's metrics page."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from kvfence.guard.outside import State, check
from kvfence.guard.settings import load

Maker = Callable[..., Any]


@pytest.fixture
def registry() -> CollectorRegistry:
    """A page of its own."""
    return CollectorRegistry()


def metrics_of(registry: CollectorRegistry, vllm: Any, role: str = "decode") -> Any:
    """Give the metrics of one engine."""
    from kvfence.guard.vllm.stats import FenceMetrics

    def made(kind: Any) -> Any:
        return lambda **given: kind(registry=registry, **given)

    types = {Counter: made(Counter), Gauge: made(Gauge)}
    settings = load({"KVFENCE_GUARD_KEY": "k" * 32})
    return FenceMetrics(settings, role, None, types, ["model_name", "engine"], {0: ["smol", "0"]})


def test_counts_travel_with_nixls_and_add_up(vllm: Any) -> None:
    """Two processes' counts become one, as vLLM adds them, pickled between."""
    from kvfence.guard.vllm.stats import FenceStats

    worker = FenceStats.of({"decode digest-matches pass": 2})
    worker.data["transfer_duration"].append(0.5)
    scheduler = pickle.loads(pickle.dumps(FenceStats.of({"decode digest-matches pass": 1, "held": 3})))
    both = worker.aggregate(scheduler)
    assert both.counts() == {"decode digest-matches pass": 3, "held": 3}
    assert both.data["transfer_duration"] == [0.5]
    assert both.reduce() == {"Num successful transfers": 1, "kvfence refused": 0}


def test_counts_alone_are_not_empty(vllm: Any) -> None:
    """vLLM drops what says that it is empty."""
    from kvfence.guard.vllm.stats import FenceStats

    assert FenceStats().is_empty()
    assert not FenceStats.of({"held": 1}).is_empty()
    assert FenceStats.of({}).is_empty()


def test_the_page_shows_what_the_outside_looks_for(vllm: Any, registry: CollectorRegistry) -> None:
    """``guard check`` reads the mode, the key and the version from it."""
    from prometheus_client import generate_latest

    from kvfence.evidence.fetch import Answer
    from kvfence.guard.vllm.stats import FenceStats

    metrics = metrics_of(registry, vllm)
    metrics.observe(FenceStats.of({"decode stamp-at-adopt refuse": 2, "held": 5}).data)
    page = generate_latest(registry)
    seen = check(["http://decode"], lambda url: Answer(url, 200, page)).seen
    assert [(one.state, one.role) for one in seen] == [(State.ENFORCING, "decode")]
    labels = {"model_name": "smol", "engine": "0", "role": "decode"}
    decided = {**labels, "guard": "stamp-at-adopt", "answer": "refuse"}
    assert registry.get_sample_value("kvfence:guard_decisions_total", decided) == 2
    assert registry.get_sample_value("kvfence:guard_quarantined_pages", labels) == 5


def test_a_connector_gives_what_its_metrics_take(fenced: Maker, vllm: Any, registry: CollectorRegistry) -> None:
    """What one step counted can be shown, also where NIXL counted nothing."""
    prefill, decode = fenced("prefill"), fenced("decode")
    tokens = [1, 2, 3]
    decode.answer(tokens, prefill.run(tokens, {"do_remote_decode": True}))
    metrics = metrics_of(registry, vllm)
    stats = decode.scheduler.get_kv_connector_stats()
    metrics.observe(type(decode.scheduler).build_kv_connector_stats(stats.data).data)
    assert metrics.seen == [[]]


def test_a_second_engine_in_a_process_starts(vllm: Any) -> None:
    """Its page has its own counts; as many of the former engine's would not be registered twice."""
    from prometheus_client import REGISTRY

    for _ in range(2):
        metrics_of(REGISTRY, vllm)
    found = REGISTRY.get_sample_value(
        "kvfence:guard_quarantined_pages", {"model_name": "smol", "engine": "0", "role": "decode"}
    )
    assert found == 0
