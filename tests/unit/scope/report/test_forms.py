"""Page, CSV file and table show the same document, and no text from a log acts in any of them."""

import csv
import re
from html.parser import HTMLParser
from pathlib import Path

from kvfence.scope.relation import Reading, Trouble
from kvfence.scope.report import charts, table
from kvfence.scope.report.csv import COLUMNS, write_csv
from kvfence.scope.report.document import Bar, Line, Tally
from kvfence.scope.report.html import to_html
from kvfence.scope.report.make import make_document
from tests.unit.scope.report.conftest import POOL, Make, row

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "=cmd|' /C calc'!A0",
    "@SUM(A1)",
    "-1+1",
    "\t=1+1",
    "{{ 7*7 }}",
    "\x1b]0;owned\x07",
    "a\u202eb",
    "]]>",
    "x" * 5_000,
)


class Page(HTMLParser):
    """Collects the tags of a page and all it would load or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.suspicious: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the tag, and any attribute that loads or runs something."""
        self.tags.add(tag)
        self.suspicious += [name for name, _ in attrs if name.startswith("on") or name in {"src", "href", "srcset"}]


def hostile_rows() -> list[dict[str, object]]:
    """Make rows in which every text is hostile."""
    return [
        row(f"{text}#{index}", account=text, model=text, replica=text, release=text, source_file=text)
        for index, text in enumerate(HOSTILE)
    ]


def test_hostile_texts_act_nowhere(make_relation: Make, tmp_path: Path) -> None:
    """Scripts, formulas, templates and escapes in ids, accounts and models are plain text in page, CSV and table."""
    trouble = Trouble("odd", 3, HOSTILE[0], 1)
    relation = make_relation(hostile_rows(), readings=(Reading(HOSTILE[1], HOSTILE[0], troubles=(trouble,)),))
    document = make_document(relation, None)
    text = to_html(document)
    page = Page(text)
    assert not page.tags & {"script", "img", "iframe", "link", "object"}
    assert page.suspicious == []
    assert "49" not in re.findall(r"<b>([^<]*)</b>", text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    write_csv(relation, None, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 1 + len(HOSTILE)
    assert not [each for line in rows for each in line if each.lstrip().startswith(("=", "+", "-", "@"))]
    shown = [str(each) for line in (*table.model_rows(document), *table.account_rows(document)) for each in line]
    assert not [each for each in shown if re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", each)]


def test_the_page_loads_nothing_and_shows_the_answer(make_relation: Make) -> None:
    """The page stands alone: the headline, both limits, each class, and a policy that forbids to load anything."""
    rows = [row("r1"), row("r2", account=None), row("r3", "no_length", prompt_tokens=None)]
    text = to_html(make_document(make_relation(rows), b"k" * 16))
    assert "2 responses were affected" in text
    assert "pool 681,280" in text
    assert "context 1,048,576" in text
    assert "no account logged" in text
    assert "1 cannot be told" in text
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "")


def test_no_finding_is_not_called_clear_where_something_is_unknown(make_relation: Make) -> None:
    """A page says that nothing was affected only if nothing is unknown or likely either."""
    unknown = to_html(make_document(make_relation([row("r", "no_length", prompt_tokens=None)]), None))
    clear = to_html(make_document(make_relation([row("r", "refused", status=400)]), None))
    assert "some cannot be told" in unknown
    assert "No response was affected" in clear
    assert "No response was affected" not in unknown


def test_csv_has_every_request_that_is_not_clear(make_relation: Make, tmp_path: Path) -> None:
    """One row a request, the worst class first, with the reason in words; CLEAR ones are not in it."""
    rows = [row("a", "no_length", prompt_tokens=None), row("b"), row("c", "fits", prompt_tokens=POOL)]
    count = write_csv(make_relation(rows), None, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        head, *body = csv.reader(file)
    assert count == 2
    assert tuple(head) == COLUMNS
    assert [(line[0], line[2]) for line in body] == [("AFFECTED", "b"), ("UNKNOWN", "a")]
    assert "longer than the prefill pool" in body[0][COLUMNS.index("why")]


def test_bars_stand_where_their_lengths_are() -> None:
    """A limit stands between the bars left and right of it, one request is seen, and nothing leaves the chart."""
    bars = (Bar(524_288, 623_488, 90, 0), Bar(623_488, 741_456, 10, 4), Bar(741_456, 881_744, 1, 1))
    chart = charts.lengths(bars, POOL, 1_048_576)
    assert chart is not None
    (context, pool) = chart.limits
    assert chart.columns[1].x < pool.at < chart.columns[2].x
    assert chart.columns[2].height > 5
    assert all(0 <= column.x <= 100 and column.part <= column.height <= 170 for column in chart.columns)
    assert context.at < 100


def test_days_without_requests_have_their_place() -> None:
    """A gap in the log is a gap in the timeline, and the shade covers the period alone."""
    lines = (Line("2026-08-26", Tally(10, 4)), Line("2026-08-29", Tally(10, 8, 2)), Line(None, Tally(1)))
    chart = charts.days(lines, "2026-08-27T00:00:00Z", "2026-08-28T12:00:00Z")
    assert chart is not None
    assert len(chart.affected) == 4
    assert chart.shade == (25.0, 62.5)
    assert [column.height > 0 for column in chart.affected] == [False, False, False, True]
