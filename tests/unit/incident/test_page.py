"""The page is one file that loads nothing, and text in it is only ever text."""

import re

from msgspec.structs import replace

from kvfence.incident.findings import SeedFindings, document
from kvfence.incident.page import mark, render_page

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)> {{ 7*7 }} \"'&"


def test_the_page_loads_nothing(found: SeedFindings) -> None:
    """No script, no link, no image, no address."""
    page = render_page([found], document([found], 1.0, "simulation"))
    assert not re.search(r"<script|<link|<img|https?:|url\(|@import", page)
    assert "default-src 'none'" in page


def test_hostile_answers_are_escaped(found: SeedFindings) -> None:
    """An answer or a source that is markup stays text, marked or not."""
    assert found.sample is not None
    sample = replace(found.sample, answer=HOSTILE, source=HOSTILE, markers=("<script>", "alert"), source_tenant=HOSTILE)
    hostile = replace(found, sample=sample)
    page = render_page([hostile], document([hostile], 1.0, "simulation"))
    assert "<script" not in page
    assert "<img" not in page
    assert "{{ 7*7 }}" in page


def test_hostile_owners_are_escaped(found: SeedFindings) -> None:
    """Neither do names of tenants end an attribute or a tag."""
    assert found.sample is not None
    rows = tuple(replace(row, after=HOSTILE, before='" onload="x', shows=HOSTILE) for row in found.sample.pages)
    hostile = replace(found, sample=replace(found.sample, pages=rows))
    page = render_page([hostile], document([hostile], 1.0, "simulation"))
    assert "<script" not in page
    assert '" onload="' not in page


def test_a_page_without_a_leak_is_a_page(found: SeedFindings) -> None:
    """Where nothing leaked there is no story, and still a page."""
    none = replace(found, sample=None)
    assert "All runs" in render_page([none], document([none], 1.0, "simulation"))


def test_markers_are_set_off() -> None:
    """Markers are marked whatever their case; the rest is escaped."""
    assert str(mark("<b>hugo & Hugo", ("Hugo",))) == "&lt;b&gt;<mark>hugo</mark> &amp; <mark>Hugo</mark>"
    assert str(mark("<b>", ())) == "&lt;b&gt;"


def test_pages_of_each_tenant_have_a_colour(found: SeedFindings) -> None:
    """Eight pages before, eight after, eight stamps."""
    page = render_page([found], document([found], 1.0, "simulation"))
    assert page.count('class="page ') == 16
    assert page.count('class="guard ') == 8
    assert "--hue: " in page
