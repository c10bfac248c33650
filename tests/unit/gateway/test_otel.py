"""Spans: what they say, what they never say, and that nobody waits for a collector."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from kvfence.core.errors import SettingsError
from kvfence.gateway.logs import RequestRecord, open_log
from kvfence.gateway.otel import OtelTracing
from kvfence.gateway.telemetry import open_tracing, wants_traces
from kvfence.protocol.messages import EndReason
from kvfence.runtime.stages import Journey
from tests.unit.gateway.fakes import Running, chat, end, say

CHAT = "/v1/chat/completions"
MARKER = "ZEBRA-MARKER"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


class Traced:
    """A running app whose spans stay here."""

    def __init__(self, script) -> None:  # type: ignore[no-untyped-def]
        self.exporter = InMemorySpanExporter()
        self.tracing = OtelTracing("toy", open_log(), self.exporter)
        self.running = Running(script, tracing=self.tracing)

    def spans(self) -> dict[str, ReadableSpan]:
        self.tracing.flush()
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def traced() -> Iterator[Traced]:
    """An app that answers."""
    made = Traced(say("Paris"))
    yield made
    made.tracing.close()


async def test_a_request_is_a_server_span_with_a_model_span_inside(traced: Traced) -> None:
    """Names and attributes are those of the conventions; no content, no tenant, no key is among them."""
    async with traced.running.client(authorization=f"Bearer sk-{MARKER}") as client:
        response = await client.post(CHAT, json=chat(MARKER), headers={"baggage": f"x={MARKER}"})
    spans = traced.spans()
    root, model = spans[f"POST {CHAT}"], spans["chat toy"]
    assert root.kind.name == "SERVER"
    assert root.attributes is not None
    assert root.attributes["http.route"] == CHAT
    assert root.attributes["http.response.status_code"] == 200
    assert root.attributes["kvfence.request.id"] == response.headers["x-request-id"]
    assert model.parent is not None
    assert model.parent.span_id == root.context.span_id
    assert model.attributes is not None
    assert model.attributes["gen_ai.operation.name"] == "chat"
    assert model.attributes["gen_ai.usage.output_tokens"] == 5
    assert root.status.status_code is StatusCode.UNSET
    said = "".join(span.to_json() for span in spans.values())
    assert MARKER not in said
    assert "Paris" not in said
    assert '"local"' not in said


async def test_an_incoming_traceparent_is_the_parent(traced: Traced) -> None:
    """The caller's trace goes on here; a malformed one begins a new trace, and an unsampled one records nothing."""
    async with traced.running.client() as client:
        await client.post(CHAT, json=chat("x"), headers={"traceparent": PARENT})
        root = traced.spans()[f"POST {CHAT}"]
        assert root.parent is not None
        assert f"{root.context.trace_id:032x}-{root.parent.span_id:016x}" == PARENT[3:52]
        traced.exporter.clear()
        await client.post(CHAT, json=chat("x"), headers={"traceparent": f"00-{MARKER}"})
        assert traced.spans()[f"POST {CHAT}"].parent is None
        traced.exporter.clear()
        await client.post(CHAT, json=chat("x"), headers={"traceparent": PARENT[:-1] + "0"})
        assert traced.spans() == {}


async def test_a_refusal_says_its_reason() -> None:
    """A failed request is an error span with its name, and no exception text."""
    traced = Traced(end(EndReason.DIGEST_MISMATCH))
    async with traced.running.client() as client:
        await client.post(CHAT, json=chat("x"))
        await client.get(f"/{MARKER}")
    spans = traced.spans()
    root = spans[f"POST {CHAT}"]
    assert root.status.status_code is StatusCode.ERROR
    assert root.attributes is not None
    assert root.attributes["error.type"] == "digest_mismatch"
    assert spans["GET"].attributes is not None
    assert "http.route" not in spans["GET"].attributes
    traced.tracing.close()


def test_stages_are_spans_where_the_marks_say() -> None:
    """Each stage begins and ends at its marks; one that was under way when the request ended is an error."""
    exporter = InMemorySpanExporter()
    tracing = OtelTracing("toy", open_log(), exporter)
    marks = {"arrived": 1_000, "admitted": 2_000, "offered": 3_000, "dispatched": 9_000, "prefilling": 9_500}
    record = RequestRecord("id", CHAT, 1e-6, "POST", journeys=[Journey(marks)])
    tracing.record(record, 20e-6, [])
    tracing.flush()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert list(spans) == ["admit", "place", "reserve", "queue", "prefill", "chat toy", f"POST {CHAT}"]
    reserve, prefill = spans["reserve"], spans["prefill"]
    assert reserve.start_time is not None
    assert reserve.end_time is not None
    assert reserve.end_time - reserve.start_time == 6_000
    assert prefill.status.status_code is StatusCode.ERROR
    assert prefill.end_time == spans["chat toy"].end_time
    tracing.close()


def test_a_collector_that_never_answers_costs_spans_alone() -> None:
    """More spans than the queue holds neither wait, nor grow beyond it, nor hold up the end for more than its bound.

    One export waits 10 s for an answer: recording that waited for six of them, or an end that waited for one, shows.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        exporter = OTLPSpanExporter(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces")
        tracing = OtelTracing("toy", open_log(), exporter)
        record = RequestRecord("id", CHAT, 1.0, "POST")
        began = time.monotonic()
        for _ in range(3_000):
            tracing.record(record, 2.0, [])
        assert time.monotonic() - began < 30
        assert len(tracing._processor._batch_processor._queue) <= 2048
        began = time.monotonic()
        tracing.close()
        assert time.monotonic() - began < 8
    assert tracing.counts["sent"] == 0


@pytest.mark.parametrize(
    ("mode", "environ", "wanted"),
    [
        ("auto", {}, False),
        ("auto", ENDPOINT, True),
        ("auto", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ("auto", {**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, False),
        ("auto", {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ("off", ENDPOINT, False),
        ("on", {}, True),
    ],
)
def test_spans_are_on_where_the_setting_or_the_environment_says(
    mode: str, environ: dict[str, str], wanted: bool
) -> None:
    """OpenTelemetry's own variables are obeyed."""
    assert wants_traces(mode, environ) is wanted


def test_what_cannot_be_spoken_is_refused_by_name() -> None:
    """grpc and other exporters are told at start, both at once."""
    environ = {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_TRACES_EXPORTER": "zipkin"}
    with pytest.raises(SettingsError) as caught:
        wants_traces("auto", environ)
    assert len(caught.value.problems) == 2


def test_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans that are asked for and cannot be made stop the start."""
    monkeypatch.setitem(sys.modules, "kvfence.gateway.otel", None)
    monkeypatch.delitem(sys.modules, "opentelemetry.context", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "kvfence.gateway.otel")
    with pytest.raises(SettingsError, match=r"\[otel\]"):
        open_tracing("on", "toy", open_log(), {})


def test_nothing_is_imported_where_spans_are_off() -> None:
    """The whole gateway comes up without one module of OpenTelemetry."""
    code = (
        "import sys, kvfence.gateway.app, kvfence.gateway.server\n"
        "from kvfence.gateway.logs import open_log\n"
        "from kvfence.gateway.telemetry import open_tracing\n"
        "assert open_tracing('auto', 'toy', open_log(), {}) is None\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"
