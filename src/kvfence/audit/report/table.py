"""The table a person acts on: what fails in full, what is not known by reason, what passes as a number."""

from collections.abc import Iterable, Iterator

from kvfence.audit.deployment import FACT_FIELDS
from kvfence.audit.report.document import Document, in_order
from kvfence.audit.report.text import evidence
from kvfence.audit.runner import Finding
from kvfence.core.verdict import Verdict
from kvfence.evidence.facts import Known, SourceFacts
from kvfence.evidence.visible import cell, plain

COLUMNS = ("verdict", "rule, where, found, evidence, fix")


def rows(document: Document, everything: bool = False) -> Iterator[tuple[str, str, str, str, str]]:
    """Give the rows; ``everything``: also what passes or does not apply, and each unknown by itself."""
    for finding in in_order(document.findings):
        if finding.verdict is Verdict.FAIL or everything:
            yield _row(finding)
    if not everything:
        yield from _unknown_rows(document)


def stacked(table: Iterable[tuple[str, str, str, str, str]]) -> Iterator[tuple[str, str]]:
    """Give the rows in two columns, so that a narrow terminal shows them well."""
    for verdict, severity, rule, where, found in table:
        places = ", ".join(where.splitlines())
        yield f"{verdict}\n{severity}", f"{rule}{' in ' if places else ''}{places}\n{found}\n"


def summary(document: Document) -> list[str]:
    """Give the lines below the table."""
    counts = ", ".join(f"{number} {verdict.replace('_', ' ')}" for verdict, number in document.counts.items())
    lines = [f"{document.verdict.upper().replace('_', ' ')}: {counts}"]
    if document.verdict is Verdict.UNKNOWN:
        lines.append("UNKNOWN is not a pass: give the sources that the reasons name.")
    lines += [plain(note) for note in document.notes]
    return lines


def _row(finding: Finding) -> tuple[str, str, str, str, str]:
    lines = [cell(finding.message)]
    lines += [f"  at {evidence(origin)}" for origin in finding.evidence]
    lines += [f"  fix: {cell(fix.text)}" for fix in finding.fixes]
    verdict = finding.verdict.upper().replace("_", " ")
    if finding.ignored:
        verdict = f"{verdict} (accepted)"
        lines.append(f"  accepted: {cell(finding.ignored)}")
    return verdict, str(finding.severity), f"{finding.rule} {finding.slug}", cell(finding.subject), "\n".join(lines)


def _unknown_rows(document: Document) -> Iterator[tuple[str, str, str, str, str]]:
    """Join unknowns by reason: one line that is missing in a log leaves many rules without an answer."""
    groups: dict[str, list[Finding]] = {}
    for finding in in_order(document.findings):
        if finding.verdict is Verdict.UNKNOWN and not finding.ignored:
            groups.setdefault(finding.message, []).append(finding)
    for message, findings in groups.items():
        names = list(dict.fromkeys(finding.rule for finding in findings))
        shown = f"{names[0]} {findings[0].slug}" if len(names) == 1 else ", ".join(names)
        where = "\n".join(dict.fromkeys(cell(finding.subject) for finding in findings))
        yield "UNKNOWN", str(findings[0].severity), shown, where, cell(message)


def to_text(document: Document) -> str:
    """Give the table as plain text, for a file."""
    lines = [" | ".join(row) for row in rows(document)]
    return "\n".join([*lines, *summary(document)]) + "\n"


def fact_rows(facts: Iterable[SourceFacts]) -> Iterator[tuple[str, str, str, str]]:
    """Give a row for each fact that is known, and for each event."""
    for source in facts:
        for field in FACT_FIELDS:
            fact = getattr(source, field)
            if isinstance(fact, Known):
                default = f" (default of {fact.default_of})" if fact.default_of else ""
                yield plain(source.name), field, cell(str(fact.value)) + default, evidence(fact.origin)
        for event in source.events:
            yield plain(source.name), "event", f"{event.name}, {event.count} times", evidence(event.first)
