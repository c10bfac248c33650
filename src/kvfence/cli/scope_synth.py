"""``kvfence scope synth``: writes a log with a planted incident, and says how it is judged."""

import shlex
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from kvfence.cli.render import print_json, print_note, progress
from kvfence.core.errors import SettingsError

TENTHS = 10

app = typer.Typer()


@app.command()
def synth(
    requests: Annotated[int, typer.Option("--requests", help="Rows of the log.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Ends with .parquet, .jsonl or .csv.")],
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**31, help="One seed gives one log.")] = 1,
    affected: Annotated[int, typer.Option("--affected", help="Responses that leaked.")] = 155,
    pool: Annotated[int, typer.Option("--pool", help="Prefill's pool in the window, in tokens.")] = 681_280,
    context: Annotated[int, typer.Option("--context", help="The exposed model's context.")] = 1_048_576,
    window: Annotated[
        tuple[str, str], typer.Option("--window", metavar="FROM TO", help="First and last day of the incident.")
    ] = ("2026-08-27", "2026-09-09"),
    prober: Annotated[
        str, typer.Option("--prober", help="Plant somebody who tries it: ladder, repeat, burst or none.")
    ] = "none",
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Write a made-up log with a planted incident, and print the command that judges it."""
    from kvfence.scope.synth.companions import report_command, write_companions
    from kvfence.scope.synth.plan import Plan, Prober
    from kvfence.scope.synth.writing import write_log

    if prober not in list(Prober):
        raise SettingsError([f"--prober {prober}: write one of {', '.join(Prober)}"])
    start, last = (_day(text) for text in window)
    plan = Plan(requests, seed, affected, pool, context, Prober(prober), start, last + timedelta(days=1))
    with progress("synth") as shown:

        def told(done: int, total: int) -> None:
            tenth = TENTHS * done // total
            shown(f"{tenth * requests // TENTHS:,} of {requests:,} requests", 0, 1)

        written = write_log(plan, out, told)
    companions = write_companions(plan, written, out)
    command = report_command(plan, out, companions)
    if json:
        files = [str(path) for path in (out, *companions)]
        print_json({"files": files, "rows": written.rows, "expected": written.expected, "report": command})
        return
    counts = ", ".join(f"{count} {name}" for name, count in written.expected.items())
    print_note(f"{written.rows:,} rows in {out}, {out.stat().st_size / 1e6:,.1f} MB; a right report finds {counts}")
    sys.stdout.write(shlex.join(command) + "\n")


def _day(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=UTC)
    except ValueError as error:
        raise SettingsError([f"--window {text}: write a day such as 2026-08-27"]) from error
