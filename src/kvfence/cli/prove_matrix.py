"""``kvfence prove matrix``: every guard taken away and put back, and what then happens.

The machinery is imported inside the command: the help needs none of it.
"""

from pathlib import Path
from typing import Annotated

import typer

from kvfence.cli.exits import ExitCode
from kvfence.cli.render import print_json, print_note, print_table
from kvfence.cli.written import refuse_unwritable
from kvfence.core.errors import SettingsError

app = typer.Typer()


@app.command()
def matrix(
    guards: Annotated[list[str] | None, typer.Argument(metavar="[GUARD...]", help="These alone; default: all.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page to step through.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Take each guard away, alone and with all others on, and put it back; replay the field's known mistakes.

    Exit 0: each is needed, or said to be redundant and under what; for every hazard some set of guards is enough;
    every mistake is refuted or said not to be expressible here. Exit 1: something else was seen; 3: a limit left
    something untold, and nothing else was seen.
    """
    import msgspec

    from kvfence.protocol.guards import GUARDS
    from kvfence.prove.matrix import matrix as run
    from kvfence.prove.page import matrix_page, tables

    unknown = [name for name in guards or () if name not in GUARDS]
    if unknown:
        raise SettingsError([f"{name}: no guard is called that" for name in unknown])
    refuse_unwritable({"--html": html})
    found = run(guards or (), lambda name: print_note(f"prove: {name}"))
    if html is not None:
        html.write_text(matrix_page(found), encoding="utf-8")
    if json:
        document = msgspec.to_builtins(found)
        print_json({"ok": found.ok, **document})
    else:
        for table in tables(found):
            print_table(table.title, table.columns, table.rows, stderr=False)
    if found.ok:
        raise typer.Exit(ExitCode.NOTHING_FOUND)
    raise typer.Exit(ExitCode.COULD_NOT_TELL if found.undecided else ExitCode.FOUND)
