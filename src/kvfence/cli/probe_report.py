"""A record becomes a verdict, its files and an exit code."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, json

from kvfence.cli.exits import ExitCode
from kvfence.cli.render import console, print_error, print_json, print_note, print_table
from kvfence.cli.written import refuse_unwritable

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

    @property
    def paths(self) -> dict[str, Path]:
        """Give where files are written, by option."""
        every = {"--out": self.out, "--html": self.html, "--junit": self.junit, "--reproducer": self.reproducer}
        return {option: path for option, path in every.items() if path is not None}

    def require_writable(self) -> None:
        """Refuse paths that cannot be written: a verdict costs too much to find that out at the end.

        Raises:
            SettingsError: names every one of them.
        """
        refuse_unwritable(self.paths)


def present(record: "Record", forms: Forms) -> ExitCode:
    """Judge a record, show it, then write it, and give the verdict's exit code, also where a file failed."""
    from kvfence.probe.report.document import make_document
    from kvfence.probe.verdict import Verdict, judge

    judgement = judge(record, forms.keep_evidence)
    document = make_document(record, judgement)
    try:
        if forms.json:
            print_json(document)
        else:
            _show(document)
    finally:
        _write(document, judgement.reproducer, forms)
    codes = {Verdict.LEAK: ExitCode.FOUND, Verdict.SUSPECT: ExitCode.FOUND, Verdict.CLEAN: ExitCode.NOTHING_FOUND}
    return codes.get(document.verdict, ExitCode.COULD_NOT_TELL)


def _write(document: "Document", reproducer: str | None, forms: Forms) -> None:
    from kvfence.probe.report.html import to_html
    from kvfence.probe.report.junit import to_junit

    made: dict[str, Callable[[], str]] = {
        "--out": lambda: json.format(json.encode(document), indent=2).decode() + "\n",
        "--html": lambda: to_html(document),
        "--junit": lambda: to_junit(document),
        "--reproducer": lambda: reproducer or "",
    }
    for option, path in forms.paths.items():
        if option == "--reproducer" and reproducer is None:
            print_note(f"nothing to reproduce: {path} is not written")
            continue
        try:
            path.write_bytes(made[option]().encode())
        except OSError as error:
            print_error(f"{option} {path}: not written: {error.strerror}; the verdict on stdout stands")


def _show(document: "Document") -> None:
    from kvfence.probe.report import lines

    print_table("", lines.PHASES, lines.phase_rows(document), stderr=False)
    if document.findings:
        print_table("", lines.FINDINGS, lines.finding_rows(document), stderr=False)
    for line in lines.summary(document):
        console(stderr=False).print(line, markup=False)
