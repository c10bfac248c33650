"""Requests out of OpenTelemetry spans in OTLP's JSON, by the conventions for generative AI.

Attributes that hold messages are not read. Spans flattened to one object a line need nothing of this: ``columns.py``
finds ``gen_ai.usage.input_tokens`` by its name.
"""

from collections.abc import Iterator
from typing import Any

Row = dict[str, object]

_KEPT = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.prompt_tokens",
    "gen_ai.usage.completion_tokens",
    "gen_ai.request.model",
    "gen_ai.response.model",
    "gen_ai.response.id",
    "gen_ai.server.time_to_first_token",
    "http.response.status_code",
    "http.status_code",
    "http.request.body.size",
    "enduser.id",
    "user.id",
    "tenant.id",
    "account.id",
)
_KEPT_OF_RESOURCE = ("service.instance.id", "k8s.pod.name", "host.name", "service.version")


def is_otlp(document: object) -> bool:
    """Tell whether a JSON value is a batch of OTLP spans."""
    return isinstance(document, dict) and ("resourceSpans" in document or "resource_spans" in document)


def span_rows(document: dict[str, Any]) -> Iterator[Row | None]:
    """Give a row for each span of a batch that speaks of generative AI, None for every other span."""
    for resource_spans in _list(document, "resourceSpans", "resource_spans"):
        resource = _attributes(resource_spans.get("resource") or {})
        for scope_spans in _list(resource_spans, "scopeSpans", "scope_spans", "instrumentationLibrarySpans"):
            for span in _list(scope_spans, "spans"):
                yield _row(span, resource)


def _row(span: dict[str, Any], resource: Row) -> Row | None:
    attributes = _attributes(span)
    if not any(name.startswith(("gen_ai.", "llm.")) for name in attributes):
        return None
    status = span.get("status")
    code = status.get("code") if isinstance(status, dict) else None
    row: Row = {
        "span_id": span.get("spanId", span.get("span_id")),
        "start_time_unix_nano": span.get("startTimeUnixNano", span.get("start_time_unix_nano")),
        "end_time_unix_nano": span.get("endTimeUnixNano", span.get("end_time_unix_nano")),
        "status": 500 if code in (2, "2", "STATUS_CODE_ERROR") else 200,
    }
    row |= {name: attributes[name] for name in _KEPT if name in attributes}
    row |= {name: resource[name] for name in _KEPT_OF_RESOURCE if name in resource}
    return row


def _attributes(holder: dict[str, Any]) -> Row:
    found: Row = {}
    for each in _list(holder, "attributes"):
        value = each.get("value")
        if isinstance(value, dict):
            value = next(
                (value[kind] for kind in ("stringValue", "intValue", "doubleValue", "boolValue") if kind in value), None
            )
        if isinstance(value, str | int | float):
            found[str(each.get("key"))] = value
    return found


def _list(holder: dict[str, Any], *names: str) -> list[dict[str, Any]]:
    for name in names:
        value = holder.get(name)
        if isinstance(value, list):
            return [each for each in value if isinstance(each, dict)]
    return []
