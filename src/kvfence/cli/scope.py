"""``kvfence scope``: who was affected, by what request logs say.

The machinery is imported inside the commands: the help needs none of it.
"""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvfence.cli import scope_account, scope_synth
from kvfence.cli.exits import ExitCode
from kvfence.cli.render import print_note, progress
from kvfence.cli.scope_report import Forms, present
from kvfence.cli.shared_options import Html, Out
from kvfence.core.errors import SettingsError
from kvfence.evidence.visible import plain

if TYPE_CHECKING:
    from kvfence.scope.relation import Reading, Relation

app = typer.Typer(no_args_is_help=True)

EPILOGUE = """
Examples:

kvfence scope report logs/*.jsonl.gz --pool 681280 --context 1048576

kvfence scope report requests.parquet --deployments pools.toml --exclude own-tests.txt --json
"""


@app.callback()
def scope() -> None:
    """Which requests were answered from pages that nobody had written for them? From request logs; sends nothing."""


Logs = Annotated[
    list[str], typer.Argument(metavar="LOGS...", help="Files, globs, directories, - for stdin; with --backend, tables.")
]
TOKENS_MAX = 10**12
TEN_YEARS_S = 10 * 366 * 86400
Pool = Annotated[
    int | None, typer.Option(min=1, max=TOKENS_MAX, help="Prefill's pool in tokens, where the history is silent.")
]
Context = Annotated[
    int | None, typer.Option(min=1, max=TOKENS_MAX, help="The context length, where the history is silent.")
]
DecodePool = Annotated[
    int | None, typer.Option(min=1, max=TOKENS_MAX, help="Decode's pool in tokens, where the history is silent.")
]
Window = Annotated[
    tuple[str, str] | None, typer.Option(metavar="FROM TO", help="Times in UTC; a date as TO is included whole.")
]
Deployments = Annotated[
    list[str] | None, typer.Option(metavar="FILE", help="A pool's history (.toml), or start-up logs (LOG=REPLICA).")
]
Exclude = Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Own tests and reporters, one a line.")]
Maps = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="COLUMN=FIELD", help="Which field a column is, such as prompt_tokens=usage.prompt."),
]
TimeZone = Annotated[str | None, typer.Option(help="Of times that name none, such as Europe/Berlin.")]
Backend = Annotated[str | None, typer.Option(metavar="URL", help="Run where the logs lie: a URL that ibis knows.")]
Horizon = Annotated[
    float | None, typer.Option(min=1.0, max=TEN_YEARS_S, help="Seconds back in which pages may have been read.")
]
PrefillRate = Annotated[
    float | None, typer.Option(min=1.0, max=1e12, help="Tokens a second that prefill can do at most.")
]
Memory = Annotated[str, typer.Option(help="What the query engine may take.")]
Spill = Annotated[Path | None, typer.Option(help="Folder for what does not fit; removed afterwards.")]
AsOf = Annotated[str | None, typer.Option(metavar="TIME", help="Leave later requests out, as if it were then.")]
Csv = Annotated[Path | None, typer.Option(metavar="FILE", help="Write every request that is not clear.")]
Names = Annotated[bool, typer.Option("--names", help="Accounts and ids as they are, not as pseudonyms.")]
Key = Annotated[Path | None, typer.Option(metavar="FILE", help="The pseudonyms' key; made where there is none.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@app.command(epilog=EPILOGUE)
def report(
    logs: Logs,
    pool: Pool = None,
    context: Context = None,
    decode_pool: DecodePool = None,
    window: Window = None,
    deployments: Deployments = None,
    exclude: Exclude = None,
    maps: Maps = None,
    time_zone: TimeZone = None,
    backend: Backend = None,
    horizon: Horizon = None,
    prefill_rate: PrefillRate = None,
    memory: Memory = "2500MB",
    spill: Spill = None,
    as_of: AsOf = None,
    out: Out = None,
    html: Html = None,
    csv: Csv = None,
    names: Names = False,
    key: Key = None,
    json: Json = False,
) -> None:
    """Say which requests were affected. Exit 1: some were, or likely; 3: some cannot be told, or read; 0: none."""
    from kvfence.scope.relate import Request, relate
    from kvfence.scope.store import open_store

    request = Request(
        logs=tuple(logs),
        pool=pool,
        context=context,
        decode_pool=decode_pool,
        window=_window(window),
        deployments=tuple(deployments or ()),
        exclude=tuple(exclude or ()),
        maps=tuple(maps or ()),
        zone=time_zone,
        backend=backend,
        horizon_s=horizon,
        prefill_rate=prefill_rate,
        as_of=None if as_of is None else _moment(as_of, "--as-of")[0],
    )
    with progress("scope") as shown, open_store(shown, memory, spill) as store:
        relation = relate(store, request)
        for reading in relation.readings:
            _show_reading(reading)
        code = _exit_code(relation)
        present(relation, Forms(names, key, out, html, csv, json))
    raise typer.Exit(code)


app.registered_commands += scope_account.app.registered_commands + scope_synth.app.registered_commands


def _window(given: tuple[str, str] | None) -> tuple[datetime | None, datetime | None]:
    if given is None:
        return None, None
    start, _end = _moment(given[0], "--window")
    _start, end = _moment(given[1], "--window")
    if start >= end:
        raise SettingsError([f"--window {given[0]} {given[1]}: it ends before it begins"])
    return start, end


def _moment(text: str, option: str) -> tuple[datetime, datetime]:
    """Read a time; give it and where it ends: a date is a whole day."""
    from datetime import UTC, timedelta

    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
        return moment, moment + timedelta(days=1) if _is_date(text) else moment
    except (ValueError, OverflowError) as error:
        raise SettingsError([f"{option} {text}: write 2026-08-27 or 2026-08-27T10:00:00Z"]) from error


def _is_date(text: str) -> bool:
    from datetime import date

    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _exit_code(relation: "Relation") -> ExitCode:
    if relation.counts["AFFECTED"] or relation.counts["LIKELY"]:
        return ExitCode.FOUND
    untold = relation.counts["UNKNOWN"] or relation.counts["POSSIBLE_VICTIM"]
    unread = any(reading.num_unread for reading in relation.readings)
    return ExitCode.COULD_NOT_TELL if untold or unread else ExitCode.NOTHING_FOUND


def _show_reading(reading: "Reading") -> None:
    packed = f", {reading.compression}" if reading.compression else ""
    print_note(f"{plain(reading.source)}: {reading.format}{packed}, {reading.rows:,} requests")
    chosen = ", ".join(f"{each.column} = {plain(each.field)} ({each.how})" for each in reading.choices)
    print_note(f"  columns: {chosen or 'none'}")
    if reading.missing:
        print_note(f"  not logged: {', '.join(reading.missing)}")
    for each in reading.troubles:
        where = f", first at {each.first:,}" if each.first is not None else ""
        print_note(f"  {each.count:,} {plain(each.text)}{where}")
