"""``kvfence guard``: the plug-ins for other engines, seen from outside."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvfence.cli.exits import ExitCode
from kvfence.cli.render import print_json, print_table

app = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@app.callback()
def guard() -> None:
    """Look at the fence inside SGLang and vLLM: whether it is on, and whether a release can have it."""


@app.command()
def check(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="The workers, prefill and decode, themselves.")],
    json: Json = False,
) -> None:
    """Say whether the guard is on at each worker, with one key and one version, enforcing on both roles.

    Reads /metrics (SGLang: with --enable-metrics) and nothing else. Exit 0: guarded; 1: not, and why; 3: a worker
    could not be read.

    Example: kvfence guard check http://127.0.0.1:30000 http://127.0.0.1:30001
    """
    from kvfence.guard.outside import check as look

    found = look(urls)
    if json:
        print_json(found)
    else:
        rows = [(one.url, one.state, one.role or "–", one.key_id or "–", one.version or "–") for one in found.seen]
        print_table("", ("worker", "guard", "role", "key", "version"), rows, stderr=False)
        for problem in found.problems:
            sys.stdout.write(f"{problem}\n")
    if not found.is_known:
        raise typer.Exit(ExitCode.COULD_NOT_TELL)
    raise typer.Exit(ExitCode.FOUND if found.problems else ExitCode.NOTHING_FOUND)


@app.command("check-hooks")
def check_hooks(
    wheel: Annotated[Path, typer.Option("--wheel", metavar="FILE.whl", help="A wheel of SGLang or vLLM.")],
    json: Json = False,
) -> None:
    """Say which of the guard's points a release has, from its wheel: nothing is installed or run.

    Which engine it is follows from the package in it. Exit 0: all; 1: some are missing, and the guard refuses this
    release by their names.
    """
    from kvfence.guard.wheel import read_wheel

    found = read_wheel(wheel)
    if json:
        print_json(found)
    else:
        rows = [(one.point, one.name or f"missing: {' or '.join(one.wanted)}") for one in found]
        print_table("", ("point", "where"), rows, stderr=False)
    raise typer.Exit(ExitCode.NOTHING_FOUND if all(one.name for one in found) else ExitCode.FOUND)
