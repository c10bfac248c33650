"""A page for each rule, and their index, generated from the rules' own docstrings; nothing is written by hand."""

from collections.abc import Sequence

from kvfence.audit.catalogue import HEADINGS, Entry
from kvfence.audit.rule import Rule


def rule_page(entry: Entry) -> str:
    """Give a rule's page as Markdown."""
    rule = entry.rule
    lines = [f"# {rule.id} {rule.slug}", "", entry.title, ""]
    lines += [f"Severity: {rule.severity}. Engines: {engines_of(rule)}. Since kvfence {rule.since}.", ""]
    for heading in HEADINGS:
        lines += [f"## {heading}", "", entry.sections[heading], ""]
    if rule.alerts:
        lines += ["## Alerts", ""]
        for alert in rule.alerts:
            lines += [f"{alert.summary} (`{alert.name}`):", "", "```promql", alert.expression, "```", ""]
    return "\n".join(lines)


def index_page(entries: Sequence[Entry]) -> str:
    """Give the list of all rules as Markdown."""
    lines = ["# Audit rules", "", "Generated from the rules; `kvfence audit explain ID` shows a page.", ""]
    lines += ["| id | name | severity | engines | what is wrong |", "|---|---|---|---|---|"]
    for entry in entries:
        rule = entry.rule
        name = f"[{rule.slug}]({rule.id}.md)"
        lines.append(f"| {rule.id} | {name} | {rule.severity} | {engines_of(rule)} | {entry.title} |")
    return "\n".join(lines) + "\n"


def engines_of(rule: Rule) -> str:
    """Give the engines and releases that a rule is about."""
    return ", ".join(f"{one.engine} {one.versions}".strip() for one in rule.engines) or "all"
