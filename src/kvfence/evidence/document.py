"""The facts document of ``kvfence audit facts --json``: one object a source, each value with where it was read."""

from collections.abc import Sequence

import msgspec

from kvfence.evidence.facts import Event, Known, Origin, SourceFacts
from kvfence.evidence.signatures import gravest

_FIELDS = tuple(
    field.name
    for field in msgspec.structs.fields(SourceFacts)
    if field.name not in {"name", "kind", "events", "problems"}
)
_SMALLEST = {"pool_tokens", "pool_tokens_swa", "pool_tokens_estimated", "effective_input_limit", "context_len"}
_REAL_DATA = {"none": False, "partial": True, "all": True}


def facts_document(facts: Sequence[SourceFacts]) -> dict[str, object]:
    """One object for each source, its processes and ranks under ``parts``.

    Returns:
        ``{"schema", "sources": [{"source", "kind", <fact>: value or null, ..., "events", "problems", "sources"}]}``.
    """
    groups: dict[str, list[SourceFacts]] = {}
    for each in facts:
        groups.setdefault(each.name.partition("#")[0], []).append(each)
    return {"schema": 1, "sources": [source_document(name, parts) for name, parts in groups.items()]}


def source_document(name: str, parts: Sequence[SourceFacts]) -> dict[str, object]:
    """The object of one source; where its parts differ, a value is null, and a capacity is the smallest."""
    document: dict[str, object] = {"source": name, "kind": parts[0].kind}
    origins: dict[str, object] = {}
    for field in _FIELDS:
        known = [value for part in parts if isinstance(value := getattr(part, field), Known)]
        held = _held(field, known)
        document[field] = None if held is None else held.value
        if held is not None:
            origins[field] = _shown(held)
    real = document["kv_canary_real_data"]
    document["real_data"] = _REAL_DATA.get(str(real)) if real is not None else None
    events = [event for part in parts for event in part.events]
    document["event"] = gravest({event.name for event in events})
    document["events"] = [_event(event) for event in events]
    document["problems"] = list(dict.fromkeys(problem for part in parts for problem in part.problems))
    document["sources"] = origins
    if len(parts) > 1:
        document["parts"] = [source_document(part.name, [part]) for part in parts]
    return document


def _held(field: str, known: Sequence[Known[object]]) -> Known[object] | None:
    values = {repr(each.value) for each in known}
    if len(values) == 1:
        return known[0]
    if not known or field not in _SMALLEST:
        return None
    return min(known, key=lambda each: float(str(each.value)))


def _shown(known: Known[object]) -> dict[str, object]:
    shown = origin_document(known.origin)
    if known.default_of:
        shown["default_of"] = known.default_of
    return shown


def origin_document(origin: Origin) -> dict[str, object]:
    """Where a value was read, as plain data; ``where`` is ``file:line``."""
    where = origin.source if origin.line is None else f"{origin.source}:{origin.line}"
    shown: dict[str, object] = {"where": where, "line": origin.line, "quote": origin.quote}
    if origin.at:
        shown["at"] = origin.at
    if origin.key:
        shown["key"] = origin.key
    return shown


def _event(event: Event) -> dict[str, object]:
    return {
        "name": event.name, "count": event.count,
        "first": origin_document(event.first), "last": origin_document(event.last),
    }  # fmt: skip
