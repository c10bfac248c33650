"""The report as one self-contained page: no script, no font, no picture from anywhere else, every text escaped."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from kvfence.scope.report import charts
from kvfence.scope.report.behaviour import chance
from kvfence.scope.report.document import AccountLine, Document

ACCOUNTS_SHOWN = 60
IDS_SHOWN = 40


def to_html(document: Document) -> str:
    """Give the report as a page."""
    pool, context = limits(document)
    return _template().render(
        document=document,
        lengths=charts.lengths(document.lengths, pool, context),
        days=charts.days(document.days, document.period.start, document.period.end),
        shares=charts.shares(document),
        accounts=_with_findings(document)[:ACCOUNTS_SHOWN],
        accounts_more=max(len(_with_findings(document)) - ACCOUNTS_SHOWN, 0),
        heights={"lengths": charts.LENGTHS_HEIGHT, "days": charts.DAYS_HEIGHT, "base": charts.BASE_HEIGHT},
        ids_shown=IDS_SHOWN,
        unread=sum(each.num_unread for each in document.readings),
    )


def limits(document: Document) -> tuple[int | None, int | None]:
    """Give the smallest pool that a prompt could exceed, and its context: the two limits that are drawn."""
    unsafe = [
        (each.pool, each.context)
        for each in document.history
        if each.pool and each.context and each.pool < each.context and not each.single
    ]
    return min(unsafe, default=(document.pool, document.context), key=lambda pair: pair[0] or 0)


def _with_findings(document: Document) -> list[AccountLine]:
    def found(line: AccountLine) -> int:
        tally = line.tally
        return tally.affected + tally.likely + tally.possible_victims + tally.unknown + tally.excluded

    return [line for line in document.accounts if found(line)]


def _counted(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


def _when(moment: str) -> str:
    """Write a moment for a reader; its parts are held together."""
    return f"{moment[:10]}\u00a0{moment[11:16]}\u00a0UTC".replace("-", "\u2011")


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("kvfence.scope.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"n": _counted, "p": chance, "when": _when}
    return environment.get_template("page.html.j2")
