"""Markdown of an audit, for a pull request: whatever a log line holds stays text."""

import re

from kvfence.audit.report.document import Document, in_order
from kvfence.audit.report.table import summary
from kvfence.audit.report.text import evidence
from kvfence.audit.runner import Finding
from kvfence.core.verdict import Verdict
from kvfence.evidence.visible import cell

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~-])")
_AUTOLINK = re.compile(r"://|@|\bwww\.")


def to_markdown(document: Document) -> str:
    """Give the audit as Markdown."""
    first, *rest = summary(document)
    lines = ["# KV cache audit", "", f"**{escaped(first)}**", "", *(f"- {escaped(line)}" for line in rest)]
    lines += ["", "| verdict | severity | rule | where | found |", "|---|---|---|---|---|"]
    shown = [each for each in in_order(document.findings) if each.verdict in {Verdict.FAIL, Verdict.UNKNOWN}]
    lines += [_row(finding) for finding in shown]
    return "\n".join(lines) + "\n"


def _row(finding: Finding) -> str:
    parts = [escaped(finding.message)]
    parts += [f"at {escaped(evidence(origin))}" for origin in finding.evidence]
    parts += [f"fix: {escaped(fix.text)}" for fix in finding.fixes]
    if finding.ignored:
        parts.append(f"accepted: {escaped(finding.ignored)}")
    rule = f"{finding.rule} {escaped(finding.slug)}"
    cells = (finding.verdict.upper(), finding.severity, rule, escaped(cell(finding.subject)), "<br>".join(parts))
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Give a text that is no markup, no link and no mention."""
    shown = cell(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    shown = _SPECIAL.sub(r"\\\1", shown)
    return _AUTOLINK.sub(lambda found: "".join(f"&#{ord(char)};" for char in found[0]), shown)
