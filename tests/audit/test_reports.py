"""Every format holds the verdicts, and nothing that a hostile log says becomes anything but text."""

import json
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import fastjsonschema
import pytest

from kvfence.audit.deployment import assemble
from kvfence.audit.report.document import Document, make_document, to_json_text
from kvfence.audit.report.html import to_html
from kvfence.audit.report.junit import to_junit
from kvfence.audit.report.markdown import to_markdown
from kvfence.audit.report.sarif import to_sarif
from kvfence.audit.report.table import rows, to_text
from kvfence.audit.runner import run
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Known, Origin, SourceFacts
from kvfence.evidence.visible import CHARS_MAX, cell, plain
from tests.audit.sarif_subset import SCHEMA

HOSTILE = (
    '=HYPERLINK("http://evil","x")<script>alert(1)</script>\x1b[31m\x00\u202e]]>&amp;</code>|`x`\n'
    "[a](javascript:1)![i](http://evil/i.png)@someone {{7*7}}{% raw %}" + "A" * 10_000
)
FORMATS = {
    "json": to_json_text,
    "sarif": to_sarif,
    "junit": to_junit,
    "markdown": to_markdown,
    "html": to_html,
    "text": to_text,
}


def hostile_document() -> Document:
    """An audit whose every text comes from an enemy."""
    origin = Origin(HOSTILE, 7, HOSTILE, HOSTILE, HOSTILE)
    sources = [
        SourceFacts(
            HOSTILE,
            "log",
            engine=Known("sglang", origin),
            version=Known(HOSTILE, origin),
            role=Known("prefill", origin),
            pool_tokens=Known(100, origin),
            context_len=Known(200, origin),
            speculation=Known(HOSTILE, origin),
            side_channel=Known(HOSTILE, origin),
            outer_cache=Known("lmcache" + HOSTILE, origin),
        ),
        SourceFacts("decode.log", "log", role=Known("decode", origin), speculation=Known("x", origin)),
    ]
    deployment = assemble(sources)
    return make_document(run(deployment), deployment, Severity.HIGH, [HOSTILE])


DOCUMENT = hostile_document()


@pytest.mark.parametrize("name", FORMATS)
def test_no_hidden_character_reaches_a_reader(name: str) -> None:
    """Escapes, nulls and direction marks are written as code points in every format; only newlines stay."""
    text = FORMATS[name](DOCUMENT)
    hidden = {char for char in text if unicodedata.category(char) in {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}}
    assert hidden <= {"\n", "\t"}
    assert "A" * (CHARS_MAX + 1) not in text


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_says_what_fails(name: str) -> None:
    """No format leaves the finding out."""
    assert "KVF0001" in FORMATS[name](DOCUMENT)


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_html_has_its_own_tags_alone() -> None:
    """What a log says opens no tag, no link and no script."""
    tags = Tags()
    tags.feed(to_html(DOCUMENT))
    assert tags.seen.isdisjoint({"script", "a", "img", "iframe"})
    assert tags.attributes <= {"lang", "charset", "http-equiv", "content", "name", "class"}
    assert "{{7*7}}" in to_html(DOCUMENT)


def test_markdown_has_no_markup_of_a_log() -> None:
    """No link, picture, tag, mention or extra column comes out of a log line."""
    text = to_markdown(DOCUMENT)
    assert "<script" not in text
    assert not re.search(r"(?<!\\)\]\(", text)
    assert "://" not in text
    assert "@" not in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {6}


def test_junit_is_well_formed_and_counts_unknown_as_an_error() -> None:
    """FAIL is a failure, UNKNOWN an error: neither reads as passed."""
    suite = ElementTree.fromstring(to_junit(DOCUMENT)).find("testsuite")
    assert suite is not None
    assert int(suite.get("failures", 0)) == DOCUMENT.counts["fail"]
    assert int(suite.get("errors", 0)) == DOCUMENT.counts["unknown"]


def test_sarif_keeps_the_published_form() -> None:
    """The objects that are used have the required keys and no others; UNKNOWN is a result to review."""
    log = json.loads(to_sarif(DOCUMENT))
    fastjsonschema.compile(SCHEMA)(log)
    results = log["runs"][0]["results"]
    assert {result["kind"] for result in results} == {"fail", "review"}
    assert all((result["level"] == "none") == (result["kind"] == "review") for result in results)
    rules = log["runs"][0]["tool"]["driver"]["rules"]
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in results)


def test_json_is_one_document_with_the_exit_code() -> None:
    """The document carries verdict, exit code and evidence."""
    read = json.loads(to_json_text(DOCUMENT))
    assert (read["schema"], read["verdict"], read["exit_code"]) == ("kvfence-audit/1", "fail", 1)
    finding = next(each for each in read["findings"] if each["rule"] == "KVF0001")
    assert finding["evidence"][0]["line"] == 7


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", " =1", "\t=1"])
def test_no_cell_is_a_formula(text: str) -> None:
    """A cell that is copied into a spreadsheet stays text."""
    assert not cell(text).lstrip().startswith(("=", "+", "-", "@"))


def test_the_table_has_no_formula_and_no_extra_line() -> None:
    """Neither name nor message of a hostile source begins a formula."""
    for row in rows(DOCUMENT, everything=True):
        assert not any(line.lstrip().startswith(("=", "+", "@")) for each in row for line in each.splitlines())


def test_plain_text_says_what_was_cut() -> None:
    """A text that is too long is cut and says so."""
    assert plain("x" * 3000).endswith("[cut]")
