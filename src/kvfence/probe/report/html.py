"""The report as one self-contained page: no script, no font, no picture from anywhere else, every text escaped."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from kvfence.probe.report import charts
from kvfence.probe.report.document import Document
from kvfence.probe.verdict import Verdict

EVIDENCE_SHOWN = 40
CLASSES = {Verdict.LEAK: "leak", Verdict.SUSPECT: "suspect", Verdict.CLEAN: "clean", Verdict.UNKNOWN: "unknown"}


def to_html(document: Document) -> str:
    """Give the report as a page."""
    cells = {(pair.asker, pair.owner): pair.answers for pair in document.matrix}
    return _template().render(
        document=document,
        klass=CLASSES[document.verdict],
        heading=heading(document),
        ladder=charts.ladder(document),
        speed=charts.speed(document),
        timeline=charts.timeline(document),
        cells=cells,
        most=max(cells.values(), default=1),
        heights={"lane": charts.LANE_HEIGHT, "speed": charts.TTFT_HEIGHT, "tenant": charts.TENANT_HEIGHT},
        drawn=len(charts.shown(document.lines)),
        evidence_shown=EVIDENCE_SHOWN,
    )


def heading(document: Document) -> str:
    """Say the verdict in a sentence."""
    if document.verdict is Verdict.LEAK:
        return "One caller’s text comes out of another caller’s request"
    if document.verdict is Verdict.SUSPECT:
        return "No text of another caller was proven, but a sound server does not do this"
    if document.verdict is Verdict.CLEAN:
        return "No leak was seen, and this run bounds how often one may come"
    return "This run cannot tell"


def chance(value: float | None) -> str:
    """Write a probability for a reader."""
    if value is None:
        return "–"
    return f"{100 * value:.3g} %" if value >= 0.0001 else f"{value:.1e}"


def _counted(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("kvfence.probe.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"n": _counted, "p": chance}
    return environment.get_template("page.html.j2")
