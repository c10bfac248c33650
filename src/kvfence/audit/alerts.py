"""The rules as alerts for a metrics server: a Prometheus rule file, of the same rules that the audit runs."""

import json
from collections.abc import Sequence

from kvfence.audit.catalogue import Entry
from kvfence.audit.rule import Alert, Rule


def to_rule_file(entries: Sequence[Entry]) -> str:
    """Give the alerts of all rules as YAML; scalars are quoted as JSON, which YAML reads alike."""
    lines = ["groups:", "  - name: kvfence", "    rules:"]
    for entry in entries:
        for alert in entry.rule.alerts:
            lines += _alert(entry.rule, alert)
    return "\n".join(lines) + "\n"


def _alert(rule: Rule, alert: Alert) -> list[str]:
    return [
        f"      - alert: {json.dumps(alert.name)}",
        f"        expr: {json.dumps(alert.expression)}",
        f"        for: {json.dumps(alert.for_)}",
        "        labels:",
        f"          severity: {json.dumps(str(rule.severity))}",
        f"          rule: {json.dumps(rule.id)}",
        "        annotations:",
        f"          summary: {json.dumps(alert.summary)}",
        f"          description: {json.dumps(f'kvfence audit explain {rule.id}')}",
    ]
