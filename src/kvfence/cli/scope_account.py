"""``kvfence scope account``: what one customer is to be told."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvfence.cli.exits import ExitCode
from kvfence.cli.render import print_json, print_table

app = typer.Typer()

EXITS = {
    "affected": ExitCode.FOUND,
    "likely": ExitCode.FOUND,
    "possible_victim": ExitCode.COULD_NOT_TELL,
    "unknown": ExitCode.COULD_NOT_TELL,
    "not_seen": ExitCode.COULD_NOT_TELL,
}


@app.command()
def account(
    name: Annotated[str, typer.Argument(metavar="ID", help="The account, by its name or its pseudonym.")],
    report: Annotated[Path, typer.Argument(metavar="REPORT.json", help="What scope report --out (or --json) wrote.")],
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="The key of the report's pseudonyms.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say whether an account was affected. Exit 1: it was, or probably; 3: that cannot be told, or no request
    is its; 0: it was not."""
    from kvfence.scope.account import answer
    from kvfence.scope.report.document import from_json
    from kvfence.scope.report.pseudonyms import DEFAULT_KEY, read_key

    document = from_json(report.read_bytes(), str(report))
    path = key or (Path(DEFAULT_KEY) if document.names.pseudonyms and Path(DEFAULT_KEY).exists() else None)
    found = answer(document, name, None if path is None else read_key(path))
    if json:
        print_json(found)
    else:
        tally, longest = found.tally, "–" if found.longest is None else f"{found.longest:,}"
        columns = ("account", "verdict", "affected", "likely", "possible victims", "unknown", "longest prompt")
        counts = (tally.affected, tally.likely, tally.possible_victims, tally.unknown)
        print_table("", columns, [(found.account, found.verdict.replace("_", " "), *counts, longest)])
        sys.stdout.write(found.letter + "\n")
        for line in found.lines():
            sys.stdout.write(f"  {line}\n")
    raise typer.Exit(EXITS.get(found.verdict, ExitCode.NOTHING_FOUND))
