"""The Grafana dashboard of a server, made from the names that ``/metrics`` exports.

``python -m kvfence.gateway.dashboard > examples/grafana/kvfence.json`` makes the file anew; a test holds it current
and compares every name with what is exported. Not for: the numbers (``metrics.py``).
"""

import sys
from typing import Any, Literal

from msgspec import Struct, json

from kvfence.protocol.guards import GUARDS

Unit = Literal["reqps", "s", "short", "percentunit", "none"]

COLUMNS = 24
HEIGHT = 8
ON = 'instance=~"$instance"'
"""Every expression looks at the chosen servers alone."""

VERDICTS = "|".join(name for name, guard in GUARDS.items() if guard.refuses)


class Query(Struct, frozen=True):
    """One line of a panel. ``legend``: Grafana's template over labels."""

    expr: str
    legend: str


class Panel(Struct, frozen=True):
    """One panel. ``note``: what to make of it. ``stacked``: the lines add up to something."""

    title: str
    note: str
    queries: tuple[Query, ...]
    unit: Unit = "short"
    stacked: bool = False
    width: int = 8


def _rate(metric: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{ON}{more}}}[$__rate_interval]))"


def _quantile(metric: str, share: float, by: str = "") -> str:
    return f"histogram_quantile({share}, sum by (le{by}) (rate({metric}_bucket{{{ON}}}[$__rate_interval])))"


def _quantiles(metric: str) -> tuple[Query, ...]:
    return tuple(Query(_quantile(metric, share), f"p{share * 100:.0f}") for share in (0.5, 0.95, 0.99))


ROWS: dict[str, tuple[Panel, ...]] = {
    "Requests": (
        Panel(
            "Answers",
            "By reason: ok, or the name of what happened. Anything called mismatch is the fence at work.",
            (Query(_rate("kvfence_requests_total", "reason"), "{{reason}}"),),
            "reqps",
            stacked=True,
        ),
        Panel("Open", "Requests being answered.", (Query(f"sum(kvfence_requests_open{{{ON}}})", "open"),)),
        Panel(
            "Tokens a second",
            "Of prompts that got an answer, and of answers.",
            (Query(_rate("kvfence_tokens_total", "direction"), "{{direction}}"),),
        ),
    ),
    "Latency": (
        Panel("First token", "From arrival.", _quantiles("kvfence_ttft_seconds"), "s"),
        Panel("Between tokens", "Of one answer.", _quantiles("kvfence_inter_token_seconds"), "s"),
        Panel(
            "Stages, p95",
            "reserve: decode's pool is full; queue: prefill's is, or it is behind; transfer runs beside prefill.",
            (Query(_quantile("kvfence_stage_seconds", 0.95, ", stage"), "{{stage}}"),),
            "s",
        ),
    ),
    "The fence": (
        Panel(
            "Refused by a guard",
            "Each one is a request that would have read pages that were not its own, or never fitted.",
            (
                Query(
                    _rate("kvfence_guard_decisions_total", "guard, place", f',answer="refuse",guard=~"{VERDICTS}"'),
                    "{{guard}}@{{place}}",
                ),
            ),
            "reqps",
            stacked=True,
        ),
        Panel(
            "Guards obeyed",
            "0: a server runs with --observe, and answers what it should refuse.",
            (Query(f"min(kvfence_enforcing{{{ON}}})", "enforcing"),),
        ),
        Panel(
            "Would have been refused",
            "With --observe: each one was answered with bytes that failed verification.",
            (
                Query(
                    _rate("kvfence_guard_decisions_total", "guard, place", ',answer="observed"'),
                    "{{guard}}@{{place}}",
                ),
            ),
            "reqps",
            stacked=True,
        ),
        Panel(
            "Answers of all guards",
            "Guards that keep a page from re-use answer no in ordinary work: a page in transfer is not free yet.",
            (Query(_rate("kvfence_guard_decisions_total", "answer"), "{{answer}}"),),
            "reqps",
        ),
        Panel(
            "Hand-offs by outcome",
            "As decode counts them.",
            (Query(_rate("kvfence_handoffs_total", "outcome"), "{{outcome}}"),),
            "reqps",
            stacked=True,
            width=16,
        ),
        Panel(
            "Prefill's pages",
            "By state.",
            (Query(f'sum by (state) (kvfence_pool_pages{{{ON},role="prefill"}})', "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Decode's pages",
            "By state.",
            (Query(f'sum by (state) (kvfence_pool_pages{{{ON},role="decode"}})', "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Prompts found in prefill's pages",
            "Tokens that an earlier request of the tenant had computed, tokens computed, pages evicted.",
            (
                Query(_rate("kvfence_prefix_tokens_total", "outcome"), "{{outcome}} tokens"),
                Query(_rate("kvfence_prefix_evicted_pages_total", "worker"), "pages evicted from {{worker}}"),
            ),
        ),
        Panel(
            "Quarantined share",
            "Pages whose last write may not have ended; above a quarter the supervisor recycles prefill.",
            (
                Query(
                    f'sum by (role) (kvfence_pool_pages{{{ON},state="quarantined"}})'
                    f" / sum by (role) (kvfence_pool_pages{{{ON}}})",
                    "{{role}}",
                ),
            ),
            "percentunit",
        ),
    ),
    "Workers": (
        Panel(
            "Ready",
            "Workers that take new requests.",
            (Query(f"sum by (role) (kvfence_worker_ready{{{ON}}})", "{{role}}"),),
        ),
        Panel(
            "Restarts in an hour",
            "Each one is a new incarnation.",
            (Query(f"sum by (role) (increase(kvfence_worker_restarts_total{{{ON}}}[1h]))", "{{role}}"),),
        ),
        Panel(
            "Events and lost spans",
            "Passes and comparisons are work; model errors, refused and dropped frames, lost traces and spans are not.",
            (
                Query(
                    _rate("kvfence_worker_events_total", "role, event", ',event!~"passes|pages_compared"'),
                    "{{role}} {{event}}",
                ),
                Query(_rate("kvfence_spans_total", "outcome", ',outcome="lost"'), "spans {{outcome}}"),
            ),
        ),
    ),
}


def build_dashboard() -> dict[str, Any]:
    """Give the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
                "panels": [],
            }
        )
        left, top = 0, top + 1
        for panel in row:
            if left + panel.width > COLUMNS:
                left, top = 0, top + HEIGHT
            panels.append(_panel(panel, len(panels) + 1, left, top))
            left += panel.width
        top += HEIGHT
    return {
        "title": "kvfence",
        "uid": "kvfence",
        "tags": ["kvfence"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _instances()]},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, left: int, top: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    targets = [
        {"refId": chr(65 + index), "expr": query.expr, "legendFormat": query.legend, "datasource": source}
        for index, query in enumerate(panel.queries)
    ]
    stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
    custom = {"stacking": stacking, "fillOpacity": 25 if panel.stacked else 5, "lineWidth": 1, "showPoints": "never"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.note,
        "datasource": source,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}


def _instances() -> dict[str, Any]:
    return {
        "name": "instance",
        "type": "query",
        "label": "Server",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": "label_values(kvfence_requests_open, instance)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
    }


def encode_dashboard() -> bytes:
    """Give the file's bytes."""
    return json.format(json.encode(build_dashboard()), indent=2) + b"\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(encode_dashboard())
