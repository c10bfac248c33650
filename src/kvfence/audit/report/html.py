"""One HTML page of an audit, without script, pictures or anything that is fetched; every value is escaped."""

from functools import cache
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template

from kvfence.audit.report.document import Document, in_order
from kvfence.audit.report.table import summary
from kvfence.audit.report.text import evidence
from kvfence.evidence.visible import cell


def to_html(document: Document) -> str:
    """Give the audit as a page."""
    return _template().render(document=document, findings=in_order(document.findings), summary=summary(document))


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"cell": cell, "evidence": evidence}
    return environment.from_string(resources.files(__package__ or "").joinpath("page.html").read_text("utf-8"))
