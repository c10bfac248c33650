"""A report in each of its forms: whole, harmless whatever the server said, and the same for the same record."""

import re
from functools import cache
from html.parser import HTMLParser
from typing import Any

import fastjsonschema
import msgspec
from junitparser import JUnitXml
from msgspec.structs import replace

from kvfence.probe.exchange import Record, Target, Trouble
from kvfence.probe.report.document import SCHEMA, Document, make_document
from kvfence.probe.report.html import to_html
from kvfence.probe.report.junit import to_junit
from kvfence.probe.report.lines import finding_rows, phase_rows, summary
from kvfence.probe.verdict import judge
from tests.unit.probe.endpoints import record
from tests.unit.probe.faults import FAULTS

HOSTILE = "<script>alert(1)</script>\x1b[31m\x00\ud800\u202e\r\n]]>&amp;'\"" + "A" * 300_000


@cache
def leaky() -> Record:
    """Give a record with a leak."""
    return record(7, change=FAULTS["foreign-marker"], rungs=52)


def hostile() -> Record:
    """Give the same from a server that says the worst, everywhere it can."""
    made = leaky()
    spoilt = tuple(
        replace(each, text=HOSTILE[:200] + each.text + HOSTILE, message=HOSTILE, aside=HOSTILE[:100])
        if number % 40 == 0
        else each
        for number, each in enumerate(made.exchanges)
    )
    broken = replace(spoilt[-1], status=500, trouble=Trouble.REFUSED, message=HOSTILE)
    target = Target(url="http://x/" + HOSTILE[:80], model=HOSTILE[:80], keys=made.target.keys)
    return replace(made, exchanges=(*spoilt[:-1], broken), target=target, cut_why=HOSTILE[:300])


def to_json(document: Document) -> str:
    """Write a document as ``--json`` does."""
    return msgspec.json.encode(document).decode()


def document_of(made: Record, keep: bool = False) -> Document:
    """Judge a record and put its report together."""
    return make_document(made, judge(made, keep))


def test_the_document_has_what_programs_look_for() -> None:
    """verdict, requests, findings, bound, power; it reads back as it was written, and keeps to its schema."""
    document = document_of(leaky())
    text = to_json(document)
    plain = msgspec.json.decode(text)
    assert {
        "verdict",
        "requests",
        "findings",
        "bound",
        "power",
        "calibration",
        "phases",
        "cut",
        "kvfence",
        "seed",
    } <= set(plain)
    assert (plain["schema"], plain["verdict"], plain["requests"]) == (SCHEMA, "LEAK", len(leaky().exchanges))
    assert msgspec.json.decode(text, type=Document) == document
    schema = msgspec.json.schema(Document)
    fastjsonschema.compile(_older(schema) | {"$schema": "http://json-schema.org/draft-07/schema#"})(plain)


def _older(schema: Any) -> Any:
    """Write tuples of a fixed length as draft 7 does: the validator knows no newer one."""
    if isinstance(schema, list):
        return [_older(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _older(each) for key, each in schema.items()}
    return made | {"items": made.pop("prefixItems")} if "prefixItems" in made else made


def test_no_prompt_and_no_answer_stands_in_any_form() -> None:
    """Words of markers are in none of them, unless evidence is kept."""
    made = leaky()
    document = document_of(made)
    words = {
        word for markers in made.planted.values() for marker in markers for word in marker.split() if word.isalpha()
    }
    for text in (to_json(document), to_html(document), to_junit(document), "\n".join(summary(document))):
        assert not words & set(re.findall(r"[a-z]+", text.lower()))
    assert any(word in to_json(document_of(made, keep=True)) for word in words)


def test_hostile_answers_reach_no_form_raw() -> None:
    """Megabytes, escapes, markup and lone surrogates are made visible or cut; every form stays well formed."""
    document = document_of(hostile(), keep=True)
    forms = {"json": to_json(document), "html": to_html(document), "junit": to_junit(document)}
    forms["screen"] = "\n".join(
        [*summary(document), *map(str, finding_rows(document)), *map(str, phase_rows(document))]
    )
    for text in forms.values():
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202e]", text)
        text.encode()
        assert len(text) < 3_000_000
    assert "<script" not in forms["html"]
    JUnitXml.fromstring(forms["junit"].encode())
    msgspec.json.decode(forms["json"])


class Loads(HTMLParser):
    """Notes whatever a page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag or an attribute that leads outside."""
        named = [name for name, _ in attrs if name in ("src", "href", "xlink:href") or name.startswith("on")]
        if tag in ("script", "link", "img", "iframe", "object") or named:
            self.found.append(tag)


def test_the_page_loads_and_runs_nothing() -> None:
    """No script, no picture, no link; all four plots are drawn."""
    page = to_html(document_of(leaky()))
    reader = Loads()
    reader.feed(page)
    assert reader.found == []
    assert page.count("<svg") == 3
    assert 'class="matrix"' in page
    assert to_html(document_of(record(3))).count("<svg") == 3


def test_junit_counts_a_leak_as_a_failure_and_no_answer_as_an_error() -> None:
    """A continuous integration goes red in both cases, for different reasons."""
    leak = JUnitXml.fromstring(to_junit(document_of(leaky())).encode())
    unknown = JUnitXml.fromstring(to_junit(document_of(replace(record(3), exchanges=()))).encode())
    clean = JUnitXml.fromstring(to_junit(document_of(record(3))).encode())
    counts = [(sum(s.failures for s in xml), sum(s.errors for s in xml)) for xml in (leak, unknown, clean)]
    assert counts[0][0] >= 2
    assert counts[1:] == [(0, 1), (0, 0)]


def test_an_empty_record_is_drawn_as_well() -> None:
    """Nothing was sent: the page says so and draws no plot."""
    page = to_html(document_of(replace(record(3), exchanges=())))
    assert "cannot tell" in page
    assert "<svg" not in page


def test_answers_that_were_not_kept_whole_are_told() -> None:
    """On the screen, on the page and in the document; a report in which there are none says nothing of it."""
    made, judgement = leaky(), judge(leaky())
    first = replace(made.exchanges[0], left_out=1000)
    whole, cut = (make_document(each, judgement) for each in (made, replace(made, exchanges=(first,))))
    assert (whole.shortened, cut.shortened, cut.lines[0].length - whole.lines[0].length) == (0, 1, 1000)
    said = [" ".join(summary(each)) + to_html(each) for each in (whole, cut)]
    assert ["answers were longer than" in each and "too long to be kept" in each for each in said] == [False, True]
