"""What ``kvfence scope report`` does with a relation: the document, its forms on disk, the tables on the screen."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from kvfence.cli.render import print_json, print_note, print_table

if TYPE_CHECKING:
    from kvfence.scope.relation import Relation
    from kvfence.scope.report.document import Document


class Forms(Struct, frozen=True):
    """Where the report goes.

    names: as they are, else pseudonyms under ``key``, which is made where it is not there. out, html, csv: files; json:
    on stdout instead of tables.
    """

    names: bool = False
    key: Path | None = None
    out: Path | None = None
    html: Path | None = None
    csv: Path | None = None
    json: bool = False


def present(relation: "Relation", forms: Forms) -> None:
    """Write every form that was asked for."""
    from kvfence.scope.report.csv import write_csv
    from kvfence.scope.report.document import to_json
    from kvfence.scope.report.html import to_html
    from kvfence.scope.report.make import make_document

    key = _key(forms)
    document = make_document(relation, key)
    if forms.out is not None:
        forms.out.write_text(to_json(document), "utf-8")
    if forms.html is not None:
        forms.html.write_text(to_html(document), "utf-8")
    if forms.csv is not None:
        count = write_csv(relation, key, forms.csv)
        print_note(f"{count:,} requests that are not clear in {forms.csv}")
    if forms.json:
        print_json(document)
    else:
        show(document)


def _key(forms: Forms) -> bytes | None:
    from kvfence.scope.report.pseudonyms import DEFAULT_KEY, read_or_make_key

    if forms.names:
        return None
    path = forms.key or Path(DEFAULT_KEY)
    key, made = read_or_make_key(path)
    if made:
        print_note(f"accounts and request ids are pseudonyms under a new key, {path}: keep it, or ask for --names")
    return key


def show(document: "Document") -> None:
    """Draw the tables on stdout."""
    from kvfence.scope.report import table

    print_table("", table.MODEL_COLUMNS, table.model_rows(document), stderr=False)
    print_table("\nby day (UTC)", table.DAY_COLUMNS, table.day_rows(document), stderr=False)
    print_table("\nby account", table.ACCOUNT_COLUMNS, table.account_rows(document), stderr=False)
    print_table("\nwhy", table.REASON_COLUMNS, table.reason_rows(document), stderr=False)
    for line in ("", *table.below(document), "", table.headline(document)):
        sys.stdout.write(line + "\n")
