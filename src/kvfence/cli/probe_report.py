"""A record becomes a verdict, its files and an exit code."""

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, json

from kvfence.cli.exits import ExitCode
from kvfence.cli.render import console, print_json, print_note

if TYPE_CHECKING:
    from kvfence.probe.exchange import Record
    from kvfence.probe.report.document import Document


class Forms(Struct, frozen=True):
    """What is wanted of a report."""

    json: bool
    out: Path | None
    keep_evidence: bool


def present(record: "Record", forms: Forms) -> ExitCode:
    """Judge a record, show and write it, and give the exit code."""
    from kvfence.probe.report.document import make_document
    from kvfence.probe.verdict import Verdict, judge

    document = make_document(record, judge(record, forms.keep_evidence))
    if forms.out is not None:
        forms.out.write_bytes(json.format(json.encode(document), indent=2) + b"\n")
    if forms.json:
        print_json(document)
    else:
        _show(document)
    codes = {Verdict.LEAK: ExitCode.FOUND, Verdict.SUSPECT: ExitCode.FOUND, Verdict.CLEAN: ExitCode.NOTHING_FOUND}
    return codes.get(document.verdict, ExitCode.COULD_NOT_TELL)


def _show(document: "Document") -> None:
    out = console(stderr=False)
    out.print(f"[bold]{document.verdict}[/bold]")
    for reason in document.why:
        print_note(f"  {reason}")
