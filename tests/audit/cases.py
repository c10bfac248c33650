"""Deployments of the rules' fixtures: plain values become facts, texts go through the parsers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvfence.audit.deployment import Deployment, Stated, assemble
from kvfence.evidence.facts import Event, Known, Origin, SourceFacts
from kvfence.evidence.gather import read_text

RULES = Path(__file__).parent / "rules"
ROLES = ("prefill", "decode", "single")


class Case(msgspec.Struct, frozen=True):
    """One fixture."""

    sources: tuple[SourceFacts, ...]
    stated: Stated = Stated()
    baseline: tuple[SourceFacts, ...] | None = None

    def deployment(self) -> Deployment:
        """Assemble the case."""
        return assemble(self.sources, self.stated, self.baseline)


def load(path: Path) -> Case:
    """Read a fixture."""
    read = json.loads(path.read_text("utf-8"))
    before = read.get("baseline")
    return Case(
        sources_of(read["sources"]),
        Stated(read.get("advertised"), read.get("single_tenant", False)),
        None if before is None else sources_of(before),
    )


def sources_of(given: list[dict[str, Any]]) -> tuple[SourceFacts, ...]:
    """Give the facts of a fixture's sources."""
    return tuple(source for each in given for source in _source(each))


def _source(given: dict[str, Any]) -> list[SourceFacts]:
    if "text" not in given:
        return [source(**given)]
    role = {"role": given["role"]} if "role" in given else {}
    more = known(given["name"], {**role, **given.get("facts", {})})
    return [msgspec.structs.replace(facts, **more) for facts in read_text(given["name"], given["text"])]


def source(name: str, kind: str = "log", events: Mapping[str, int] | None = None, **facts: Any) -> SourceFacts:
    """Make facts by hand."""
    seen = tuple(
        Event(event, count, Origin(name, 1, event), Origin(name, count, event))
        for event, count in (events or {}).items()
    )
    return SourceFacts(name, kind, events=seen, **known(name, facts))


def known(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Make known facts of plain values."""
    return {field: Known(value, Origin(name, 1, f"{field}={value}", key=field)) for field, value in facts.items()}
