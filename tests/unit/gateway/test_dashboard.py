"""The dashboard and the alerts name what is exported, and nothing else."""

import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvfence.gateway.dashboard import ROWS, build_dashboard, encode_dashboard
from kvfence.protocol.guards import GUARDS
from tests.house.source import ROOT
from tests.unit.gateway.fakes import Running, chat, say

FILE = ROOT / "examples" / "grafana" / "kvfence.json"
_ALERTS = (ROOT / "docs" / "operations.md").read_text().partition("## What to alert on")[2].partition("\n## ")[0]
ALERTS = re.findall(r"^\| [^|]+ \| `((?:[^|`]|\\\|)+)`", _ALERTS, re.MULTILINE)
EXPRESSIONS = [query.expr for row in ROWS.values() for panel in row for query in panel.queries]


class Gauges:
    """Numbers of every kind."""

    def pool_pages(self) -> dict[tuple[str, str, str], int]:
        return {("decode", "decode-0", "free"): 3}

    def handoffs(self) -> dict[str, int]:
        return {"stop": 1}

    def guard_decisions(self) -> dict[tuple[str, str, str], int]:
        return {("fits", "gateway", "pass"): 1}

    def worker_events(self) -> dict[tuple[str, str, str], int]:
        return {("decode", "decode-0", "passes"): 1}

    def prefixes(self) -> dict[tuple[str, str], int]:
        return {("prefill-0", "hit_tokens"): 1, ("prefill-0", "evicted_pages"): 1}


class Spans:
    """Counts of spans."""

    counts = {"sent": 1, "lost": 0}

    def record(self, *_: object) -> None:
        """Dropped."""


async def exported() -> tuple[dict[str, set[str]], set[str]]:
    """Give what /metrics exports: the labels of every sample by name, and the names of the families."""
    running = Running(say("Paris"), gauges=Gauges(), tracing=Spans())
    async with running.client() as client:
        await client.post("/v1/chat/completions", json=chat("x"))
        text = (await client.get("/metrics")).text
    labels: dict[str, set[str]] = {}
    families = set()
    for family in text_string_to_metric_families(text):
        families.add(family.name)
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels, families


def selectors(node: Any) -> Iterator[promql_parser.VectorSelector]:
    """Give every selector of a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    if isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    for child in (getattr(node, name, None) for name in ("expr", "lhs", "rhs")):
        if child is not None:
            yield from selectors(child)
    for argument in getattr(node, "args", None) or ():
        yield from selectors(argument)


def parse(expression: str) -> Any:
    """Parse, with Grafana's own variables filled in."""
    return promql_parser.parse(expression.replace("$__rate_interval", "1m").replace("\\|", "|"))


@pytest.mark.parametrize("expression", EXPRESSIONS + ALERTS)
async def test_an_expression_names_what_is_exported(expression: str) -> None:
    """Each metric is exported, and has the labels it is asked by."""
    labels, _ = await exported()
    found = list(selectors(parse(expression)))
    assert found
    for selector in found:
        assert selector.name in labels
        asked = {matcher.name for matcher in selector.matchers.matchers} - {"instance", "__name__"}
        assert asked <= labels[selector.name]


async def test_everything_that_is_exported_is_on_the_dashboard() -> None:
    """No metric is left where nobody looks."""
    _, families = await exported()
    shown = " ".join(EXPRESSIONS)
    assert [name for name in families if name not in shown and not name.endswith("_created")] == []


def test_a_name_that_is_not_exported_is_found() -> None:
    """The check sees into functions, aggregations and both sides of an operator."""
    expression = "sum by (a) (rate(kvfence_one_total[5m])) / histogram_quantile(0.5, kvfence_two{b='c'}) > 1"
    assert [selector.name for selector in selectors(parse(expression))] == ["kvfence_one_total", "kvfence_two"]


def test_the_committed_file_is_current() -> None:
    """`python -m kvfence.gateway.dashboard > examples/grafana/kvfence.json` would change nothing."""
    assert FILE.read_bytes() == encode_dashboard()


def test_panels_do_not_overlap() -> None:
    """Every panel has a place and an id of its own within 24 columns."""
    taken: set[tuple[int, int]] = set()
    panels = build_dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_alerts_on_guards_are_on_those_that_refuse_bytes() -> None:
    """The alert names guards that exist and give verdicts: all but those that a long prompt can set off."""
    (named,) = [re.search(r'guard=~"([^"]+)"', alert) for alert in ALERTS if "guard=~" in alert]
    assert named is not None
    verdicts = {name for name, guard in GUARDS.items() if guard.refuses}
    assert set(named.group(1).split("\\|")) == verdicts - {"fits", "refusal-is-final", "zero-tail"}


def test_there_are_alerts() -> None:
    """The table of the documentation was found."""
    assert len(ALERTS) >= 8
