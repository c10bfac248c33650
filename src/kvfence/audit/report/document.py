"""The audit as one JSON document, which the other formats are drawn from. No text in it has hidden characters."""

from collections.abc import Sequence

from msgspec import Struct, json, to_builtins

from kvfence import __version__
from kvfence.audit.deployment import Deployment
from kvfence.audit.runner import Audit, Finding, exit_code
from kvfence.core.verdict import Severity, Verdict, worst
from kvfence.evidence.visible import plain

SCHEMA = "kvfence-audit/1"


class EngineShown(Struct, frozen=True):
    """An engine as it was understood: what a person checks first when a verdict surprises."""

    name: str
    role: str
    engine: str | None
    version: str | None
    sources: tuple[str, ...]


class Document(Struct, frozen=True):
    """One run. verdict and exit_code count what nobody has accepted; counts: findings by verdict."""

    schema: str
    kvfence: str
    verdict: Verdict
    exit_code: int
    counts: dict[str, int]
    engines: tuple[EngineShown, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def make_document(audit: Audit, deployment: Deployment, fail_on: Severity, notes: Sequence[str] = ()) -> Document:
    """Put a run together."""
    counts = {str(verdict): sum(each.verdict is verdict for each in audit.findings) for verdict in Verdict}
    engines = tuple(
        EngineShown(
            each.name,
            str(each.role),
            getattr(each.facts.engine, "value", None),
            getattr(each.facts.version, "value", None),
            tuple(source.name for source in each.sources),
        )
        for each in deployment.engines
    )
    verdict = worst(each.verdict for each in audit.counted)
    return Document(
        SCHEMA, __version__, verdict, exit_code(audit, fail_on), counts, engines, audit.findings, tuple(notes)
    )


def to_json(document: Document) -> object:
    """Give the document as plain values whose texts are visible."""
    return _clean(to_builtins(document))


def _clean(value: object) -> object:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {key: _clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    return value


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Order findings for a reader: FAIL first, then UNKNOWN, the worst severity first; accepted ones last."""
    verdicts = [Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS, Verdict.NOT_APPLICABLE]

    def key(finding: Finding) -> tuple[bool, int, int, str]:
        return bool(finding.ignored), verdicts.index(finding.verdict), -finding.severity.rank, finding.rule

    return sorted(findings, key=key)


def to_json_text(document: Document) -> str:
    """Give the document as indented JSON."""
    return json.format(json.encode(to_json(document)), indent=2).decode() + "\n"
