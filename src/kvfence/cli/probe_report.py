"""A record becomes a verdict, its files and an exit code."""

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, json

from kvfence.cli.exits import ExitCode
from kvfence.cli.render import console, print_json, print_note, print_table

if TYPE_CHECKING:
    from kvfence.probe.exchange import Record
    from kvfence.probe.report.document import Document


class Forms(Struct, frozen=True):
    """What is wanted of a report: where each form is written, if it is."""

    json: bool
    out: Path | None
    html: Path | None
    junit: Path | None
    reproducer: Path | None
    keep_evidence: bool


def present(record: "Record", forms: Forms) -> ExitCode:
    """Judge a record, show and write it, and give the exit code."""
    from kvfence.probe.report.document import make_document
    from kvfence.probe.verdict import Verdict, judge

    judgement = judge(record, forms.keep_evidence)
    document = make_document(record, judgement)
    _write(document, judgement.reproducer, forms)
    if forms.json:
        print_json(document)
    else:
        _show(document)
    codes = {Verdict.LEAK: ExitCode.FOUND, Verdict.SUSPECT: ExitCode.FOUND, Verdict.CLEAN: ExitCode.NOTHING_FOUND}
    return codes.get(document.verdict, ExitCode.COULD_NOT_TELL)


def _write(document: "Document", reproducer: str | None, forms: Forms) -> None:
    from kvfence.probe.report.html import to_html
    from kvfence.probe.report.junit import to_junit

    if forms.out is not None:
        forms.out.write_bytes(json.format(json.encode(document), indent=2) + b"\n")
    if forms.html is not None:
        forms.html.write_text(to_html(document), encoding="utf-8")
    if forms.junit is not None:
        forms.junit.write_text(to_junit(document), encoding="utf-8")
    if forms.reproducer is not None and reproducer is None:
        print_note(f"nothing to reproduce: {forms.reproducer} is not written")
    elif forms.reproducer is not None and reproducer is not None:
        forms.reproducer.write_text(reproducer, encoding="utf-8")


def _show(document: "Document") -> None:
    from kvfence.probe.report import lines

    print_table("", lines.PHASES, lines.phase_rows(document), stderr=False)
    if document.findings:
        print_table("", lines.FINDINGS, lines.finding_rows(document), stderr=False)
    for line in lines.summary(document):
        console(stderr=False).print(line, markup=False)
