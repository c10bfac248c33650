"""SARIF 2.1.0 of an audit: FAIL as a result of kind fail, UNKNOWN of kind review; accepted ones are suppressed.

Source: OASIS, Static Analysis Results Interchange Format 2.1.0.
"""

from urllib.parse import quote

from msgspec import UNSET, Struct, UnsetType, field, json

from kvfence.audit.catalogue import Entry, catalogue
from kvfence.audit.report.document import Document, in_order
from kvfence.audit.report.text import evidence
from kvfence.audit.runner import Finding
from kvfence.core.verdict import Severity, Verdict
from kvfence.evidence.facts import Origin
from kvfence.evidence.visible import plain

_LEVELS = {
    Severity.CRITICAL: "error",
    Severity.HIGH: "error",
    Severity.MEDIUM: "warning",
    Severity.LOW: "note",
    Severity.INFO: "note",
}
_SCORES = {
    Severity.CRITICAL: "9.5",
    Severity.HIGH: "8.0",
    Severity.MEDIUM: "5.5",
    Severity.LOW: "3.0",
    Severity.INFO: "1.0",
}


class Message(Struct, frozen=True):
    """A text."""

    text: str


class Configuration(Struct, frozen=True):
    """How a rule's results are shown by default."""

    level: str


class Descriptor(Struct, frozen=True, rename="camel"):
    """A rule."""

    id: str
    name: str
    short_description: Message
    full_description: Message
    help: Message
    default_configuration: Configuration
    properties: dict[str, object]


class Driver(Struct, frozen=True, rename="camel"):
    """What made the results."""

    name: str
    version: str
    information_uri: str | UnsetType = UNSET
    rules: tuple[Descriptor, ...] = ()


class Tool(Struct, frozen=True):
    """The driver's frame."""

    driver: Driver


class Artifact(Struct, frozen=True):
    """A file or URL."""

    uri: str


class Region(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A line, from 1, and what stands in it."""

    start_line: int
    snippet: Message | None = None


class Physical(Struct, frozen=True, rename="camel"):
    """A place in a file."""

    artifact_location: Artifact
    region: Region | UnsetType = UNSET


class Location(Struct, frozen=True, rename="camel"):
    """A place, with what was read there."""

    physical_location: Physical
    message: Message


class Suppression(Struct, frozen=True):
    """An acceptance by a person."""

    kind: str
    justification: str


class Result(Struct, frozen=True, rename="camel"):
    """A finding."""

    rule_id: str
    rule_index: int
    kind: str
    level: str
    message: Message
    locations: tuple[Location, ...]
    suppressions: tuple[Suppression, ...] | UnsetType
    properties: dict[str, object]


class Run(Struct, frozen=True, rename="camel"):
    """One audit."""

    tool: Tool
    results: tuple[Result, ...]
    column_kind: str = "unicodeCodePoints"


class Log(Struct, frozen=True):
    """The whole file."""

    runs: tuple[Run, ...]
    version: str = "2.1.0"
    schema: str = field(name="$schema", default="https://json.schemastore.org/sarif-2.1.0.json")


def to_sarif(document: Document) -> str:
    """Give the audit as SARIF."""
    entries = catalogue()
    index = {entry.rule.id: number for number, entry in enumerate(entries)}
    driver = Driver("kvfence", document.kvfence, rules=tuple(_descriptor(entry) for entry in entries))
    shown = [each for each in in_order(document.findings) if each.verdict in {Verdict.FAIL, Verdict.UNKNOWN}]
    results = tuple(_result(finding, index[finding.rule]) for finding in shown)
    return json.format(json.encode(Log((Run(Tool(driver), results),))), indent=2).decode() + "\n"


def _descriptor(entry: Entry) -> Descriptor:
    rule = entry.rule
    return Descriptor(
        rule.id,
        "".join(word.capitalize() for word in rule.slug.split("-")),
        Message(entry.title),
        Message(entry.sections["Why it matters"]),
        Message(entry.sections["How to fix"]),
        Configuration(_LEVELS[rule.severity]),
        {"security-severity": _SCORES[rule.severity], "tags": ["security", "kv-cache"]},
    )


def _result(finding: Finding, index: int) -> Result:
    fails = finding.verdict is Verdict.FAIL
    fixes = " ".join(f"Fix: {fix.text}." for fix in finding.fixes)
    said = f"{finding.subject}: {finding.message}" if finding.subject else finding.message
    accepted = (Suppression("external", plain(finding.ignored)),) if finding.ignored else UNSET
    return Result(
        finding.rule,
        index,
        "fail" if fails else "review",
        _LEVELS[finding.severity] if fails else "none",
        Message(plain(f"{said}. {fixes}".strip())),
        tuple(_location(origin) for origin in finding.evidence),
        accepted,
        {"verdict": str(finding.verdict), "severity": str(finding.severity), "subject": plain(finding.subject)},
    )


def _location(origin: Origin) -> Location:
    uri = quote(plain(origin.source), safe="/:?&=#%[]@!$'()*+,;~-._")
    region = Region(origin.line, Message(plain(origin.quote))) if origin.line else UNSET
    return Location(Physical(Artifact(uri), region), Message(evidence(origin)))
