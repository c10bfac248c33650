"""``kvfence prove replay``: recorded traces, line by line, against the protocol that the server runs.

Shows what was found. Not for: replaying (``kvfence.prove.replay``).
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvfence.cli.exits import ExitCode
from kvfence.cli.render import console, print_error, print_json, print_table, progress
from kvfence.core.errors import SettingsError

if TYPE_CHECKING:
    from kvfence.prove.replay import Replay, Ruling, TraceRuling

app = typer.Typer()

LINES_MAX = 12
"""Of the commands and decisions at a departure so many are shown; the JSON document has all."""

EPILOGUE = """
Examples:

kvfence prove replay traces/

kvfence prove replay traces/gateway.ndjson traces/decode-1a2b3c4d.ndjson --json
"""


@app.command(epilog=EPILOGUE)
def replay(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Traces of one run, or folders of them.")],
    so_far: Annotated[
        bool, typer.Option("--so-far", help="Judge traces without an end (running, or killed) as far as they go.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Check live traces against the protocol: was every step one that it allows, and did every property hold?

    Traces come from `kvfence serve --trace FOLDER` and from the guards in other engines. Several of one run are also
    held against each other: nobody may have received what nobody sent. Exits 0 where all conform, 1 where a step is not
    allowed or a property was violated, 3 where that cannot be told: a trace that is cut off, damaged, of another build,
    or whose beginning was not kept.
    """
    began = time.monotonic()
    from kvfence.prove.replay import replay as replay_all
    from kvfence.trace.reader import parts_of

    paths = _files(traces)
    total = sum(part.stat().st_size for path in paths for part in parts_of(path))
    with progress("replay") as report:
        read = 0

        def watch(num_bytes: int) -> None:
            nonlocal read
            read += num_bytes
            if read == num_bytes or read // (1 << 20) != (read - num_bytes) // (1 << 20):
                report("reading", read, total)

        found = replay_all(paths, watch, so_far=so_far)
    seconds = time.monotonic() - began
    if json:
        print_json(document(found, seconds))
    else:
        _show(found, seconds)
    raise typer.Exit(exit_code(found.verdict))


def exit_code(verdict: "Ruling") -> ExitCode:
    """Give the exit code of a verdict."""
    from kvfence.prove.replay import Ruling

    if verdict is Ruling.CONFORMING:
        return ExitCode.NOTHING_FOUND
    return ExitCode.COULD_NOT_TELL if verdict is Ruling.UNKNOWN else ExitCode.FOUND


def _files(traces: Sequence[Path]) -> list[Path]:
    """Give the traces named, and those in the folders named; what was kept of a full one belongs to its successor."""
    files: list[Path] = []
    for path in traces:
        found = sorted(path.glob("*.ndjson")) if path.is_dir() else [path]
        if not found:
            raise SettingsError([f"{path}: no trace in this folder (NAME.ndjson)"])
        files += found
    kept = {path.with_name(path.name + ".1") for path in files}
    return list(dict.fromkeys(path for path in files if path not in kept))


def document(found: "Replay", seconds: float) -> dict[str, Any]:
    """Give everything as one document."""
    import msgspec

    body: dict[str, Any] = msgspec.to_builtins(found)
    rate = round(found.num_steps / seconds) if seconds else 0
    return {"schema": "kvfence-replay/1", **body, "seconds": round(seconds, 2), "steps_per_second": rate}


def _show(found: "Replay", seconds: float) -> None:
    rows = [(each.verdict.value, each.path, each.role, each.num_steps, _rules(each), each.why) for each in found.traces]
    print_table("Traces", ("verdict", "trace", "role", "steps", "guards away", "why"), rows, stderr=False)
    for each in found.traces:
        _show_departure(each)
    asked = [each for each in found.coverage if each.asked]
    answers = [(f"{g.guard}@{g.place}", g.passed, g.refused, g.observed, g.ignored) for g in asked]
    columns = ("guard", "passed", "refused", "observed", "ignored")
    print_table("What the guards answered", columns, answers, stderr=False)
    out = console(stderr=False)
    silent = [f"{g.guard}@{g.place}" for g in found.coverage if not g.asked]
    if silent:
        out.print(f"Never asked, so these traces say nothing of them: {', '.join(silent)}")
    out.print(f"{found.num_compared} messages and tokens were held against their sender's trace; {_elsewhere(found)}.")
    rate = found.num_steps / seconds if seconds else 0
    out.print(f"{found.num_steps} steps in {seconds:.1f} s ({rate:,.0f} a second): {found.verdict.value.upper()}")


def _elsewhere(found: "Replay") -> str:
    return f"{found.num_elsewhere} came from workers whose traces are not here"


def _rules(each: "TraceRuling") -> str:
    away = len(each.absent) + len(each.observed)
    return "none" if not away else f"{len(each.absent)} absent, {len(each.observed)} observed"


def _show_departure(each: "TraceRuling") -> None:
    if each.departure is not None:
        departure = each.departure
        print_error(
            f"{each.path}, step {departure.step}: {departure.why}", [departure.event] if departure.event else []
        )
        for title, lines in (("there", departure.found), ("allowed", departure.allowed)):
            more = [("", f"and {len(lines) - LINES_MAX} more")] if len(lines) > LINES_MAX else []
            rows = [(title if n == 0 else "", line) for n, line in enumerate(lines[:LINES_MAX])]
            print_table("", ("", ""), [*rows, *more] or [(title, "nothing")], stderr=False)
    if each.untold:
        untold = ", ".join(each.untold)
        console(stderr=False).print(f"{each.path}: a plug-in in {each.engine} does not see enough for: {untold}")
    if each.violated:
        rows = [(name, str(step)) for name, step in sorted(each.violated.items(), key=lambda item: item[1])]
        print_table(f"{each.path}: properties that broke", ("property", "first at step"), rows, stderr=False)
