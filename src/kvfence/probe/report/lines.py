"""The report as rows and lines for a screen; drawing them is ``cli/render.py``'s."""

from collections.abc import Iterator

from kvfence.probe.excerpts import TEXT_CHARS_MAX
from kvfence.probe.report.document import Document
from kvfence.probe.report.html import chance
from kvfence.probe.verdict import Verdict

FINDINGS = ("says", "detector", "what was seen", "requests", "p")
PHASES = ("phase", "requests", "answered", "refused", "could show", "echoed", "leak below")


def summary(document: Document) -> list[str]:
    """Give the verdict and what it rests on, a line each; the verdict last."""
    power = document.power
    lines = [f"{document.requests:,} requests to {document.target.url} ({document.target.model or 'no model named'})"]
    if power.controls:
        lines.append(
            f"positive control: {power.seen} of {power.controls} prompts had their own marker repeated; "
            f"a leak is taken to be seen in at least {power.chance:.0%} of answers"
        )
    if document.shortened:
        lines.append(
            f"{document.shortened:,} answers were longer than {TEXT_CHARS_MAX:,} characters: "
            "of what came behind them, what stands round words of markers was looked at"
        )
    if document.cut:
        lines.append(f"cut short ({document.cut}): {document.cut_why}")
    return [*lines, f"{document.verdict}: {'; '.join(document.why)}"]


def finding_rows(document: Document) -> Iterator[tuple[str, str, str, int, str]]:
    """Give a row for each finding, the gravest first."""
    for told in document.findings:
        p = chance(told.p) if told.p is not None else "by premise"
        yield str(told.severity).upper(), told.detector, told.message, len(told.requests), p


def phase_rows(document: Document) -> Iterator[tuple[str, int, int, int, int, str, str]]:
    """Give a row for each phase: what it sent, and what it could have shown."""
    for each in document.phases:
        echoed = f"{each.seen} of {each.controls}" if each.controls else "–"
        bound = chance(each.bound) if document.verdict is Verdict.CLEAN else "–"
        yield each.phase, each.requests, each.answered, each.refused, each.counted, echoed, bound
