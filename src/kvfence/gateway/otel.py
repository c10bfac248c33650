"""Spans of requests, built when a request has ended from the marks that were made on its way, and sent by OTLP.

Imported only where traces are on. Names and attributes follow OpenTelemetry's conventions for HTTP servers and for
generative AI (v1.41) where they exist; what is ours begins with ``kvfence.``. No prompt, answer, tenant or key is in
any. Bounded: spans wait in a queue that drops, a collector that does not answer costs spans and nothing else.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from structlog.typing import FilteringBoundLogger

from kvfence import __version__
from kvfence.gateway.logs import RequestRecord
from kvfence.runtime.stages import Journey

CLOSE_S = 2.0
"""How long the end of the server waits for the last spans."""
COMPLAINT_S = 60.0
"""At most one line in this time says that spans are lost."""

_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
_TRACE_HEADERS = frozenset({b"traceparent", b"tracestate"})

Attributes = dict[str, str | bool | int | float | Sequence[str]]


class OtelTracing:
    """Records requests as spans; implements ``canonical.Tracing``. Holds: one thread that sends."""

    def __init__(self, model: str, log: FilteringBoundLogger, exporter: SpanExporter | None = None) -> None:
        self.counts: Mapping[str, int] = (counts := {"sent": 0, "lost": 0})
        self._counts = counts
        self._model = model
        self._log = log
        _complain_seldom(log)
        # the SDK's own hook at exit would wait for a dead collector
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._processor = BatchSpanProcessor(_Counted(exporter or OTLPSpanExporter(), counts))
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("kvfence", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    def record(self, record: RequestRecord, ended_s: float, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Record a request that has ended."""
        try:
            self._record(record, int(ended_s * 1e9), self._parent(headers))
        except Exception as error:  # noqa: BLE001 - a library's trouble with a span is no request's
            self._counts["lost"] += 1
            self._log.warning("span_lost", error=type(error).__name__)

    def flush(self) -> None:
        """Send what waits; for tests."""
        self._processor.force_flush()

    def close(self) -> None:
        """Send what waits, for a bounded time."""
        closing = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        closing.start()
        closing.join(CLOSE_S)

    def _parent(self, headers: Sequence[tuple[bytes, bytes]]) -> Context:
        carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in _TRACE_HEADERS}
        return self._propagator.extract(carrier, Context())

    def _record(self, record: RequestRecord, ended_ns: int, parent: Context) -> None:
        started_ns = int(record.started_s * 1e9)
        known = record.route.startswith("/")
        name = f"{record.method} {record.route}" if known else record.method
        root = self._begin(name, parent, started_ns, _http_attributes(record, known), SpanKind.SERVER)
        within = set_span_in_context(root)
        for journey in record.journeys:
            self._generation(record, journey, within, ended_ns)
        if record.status >= 500 or record.status == 499:
            root.set_status(Status(StatusCode.ERROR))
        root.end(self._epoch_ns + ended_ns)

    def _generation(self, record: RequestRecord, journey: Journey, within: Context, ended_ns: int) -> None:
        """One generation and its stages; a stage that had begun when the request ended is marked as an error."""
        operation = _OPERATIONS.get(record.route, "generate_content")
        attributes = _model_attributes(record, journey, operation, self._model)
        began_ns = journey.marks.get("arrived", ended_ns)
        span = self._begin(f"{operation} {self._model}", within, began_ns, attributes)
        inside = set_span_in_context(span)
        for stage, (began, ended) in journey.intervals().items():
            part = self._begin(stage, inside, began, {"kvfence.stage": stage})
            if ended is None:
                part.set_status(Status(StatusCode.ERROR))
            part.end(self._epoch_ns + (ended_ns if ended is None else ended))
        if record.responded_s is not None and "first_token" in journey.marks:
            stream = self._begin("stream", inside, int(record.responded_s * 1e9), {"kvfence.stage": "stream"})
            stream.end(self._epoch_ns + ended_ns)
        if record.reason != "ok":
            span.set_status(Status(StatusCode.ERROR))
        span.end(self._epoch_ns + ended_ns)

    def _begin(
        self, name: str, within: Context, at_ns: int, attributes: Attributes, kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        return self._tracer.start_span(name, within, kind, attributes, start_time=self._epoch_ns + at_ns)


def _http_attributes(record: RequestRecord, known: bool) -> Attributes:
    attributes: Attributes = {
        "http.request.method": record.method,
        "http.response.status_code": record.status,
        "url.scheme": "http",
        "kvfence.request.id": record.id,
        "kvfence.reason": record.reason,
    }
    if known:
        attributes["http.route"] = record.route
    if record.reason != "ok":
        attributes["error.type"] = record.reason
    return attributes


def _model_attributes(record: RequestRecord, journey: Journey, operation: str, model: str) -> Attributes:
    attributes: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "kvfence",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": record.num_prompt,
        "gen_ai.usage.output_tokens": record.num_answer,
        "kvfence.prefill.worker": journey.prefill,
        "kvfence.decode.worker": journey.decode,
        "kvfence.attempts": journey.num_attempts,
        "kvfence.refusals": sorted(journey.refusals),
    }
    if record.reason == "ok" and journey.ending:
        attributes["gen_ai.response.finish_reasons"] = ["length" if journey.ending == "length" else "stop"]
    if record.ttft_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = record.ttft_s
    if record.reason != "ok":
        attributes["error.type"] = record.reason
    return attributes


class _Counted(SpanExporter):
    """Passes spans on and counts what became of them."""

    def __init__(self, inner: SpanExporter, counts: dict[str, int]) -> None:
        self._inner, self._counts = inner, counts

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch, in the sender's own thread."""
        try:
            result = self._inner.export(spans)
        except Exception:  # noqa: BLE001 - whatever the transport raises, these spans are lost
            result = SpanExportResult.FAILURE
        self._counts["sent" if result is SpanExportResult.SUCCESS else "lost"] += len(spans)
        return result

    def shutdown(self) -> None:
        """Stop trying."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here."""
        return self._inner.force_flush(timeout_millis)


def _resource(environ: Mapping[str, str] = os.environ) -> Resource:
    attributes: dict[str, Any] = {"service.version": __version__}
    named = environ.get("OTEL_SERVICE_NAME") or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Resource.create(attributes if named else {**attributes, "service.name": "kvfence"})


class _Seldom(logging.Handler):
    """Says once in a while that the library complained, and not what it said: that may hold an address with a key."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        super().__init__(logging.WARNING)
        self._kvfence_log = log
        self._said_s = -COMPLAINT_S

    def emit(self, record: logging.LogRecord) -> None:
        """Log that spans are being lost."""
        if time.monotonic() - self._said_s >= COMPLAINT_S:
            self._said_s = time.monotonic()
            self._kvfence_log.warning("spans_not_delivered", logger=record.name)


def _complain_seldom(log: FilteringBoundLogger) -> None:
    library = logging.getLogger("opentelemetry")
    library.handlers = [_Seldom(log)]
    library.propagate = False
