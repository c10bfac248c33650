"""``kvfence incident --scale production``: shows the incident at its own sizes.

Not for: playing it (``incident/production.py``).
"""

import time
from typing import TYPE_CHECKING

import typer

from kvfence.cli.exits import ExitCode
from kvfence.cli.render import console, print_error, print_json, print_note, print_table

if TYPE_CHECKING:
    from kvfence.incident.production import Findings, RunFacts


def play_at_scale(seed: int, *, json: bool) -> None:
    """Play every run, show what was found, and leave with its exit code."""
    from kvfence.incident.production import PRODUCTION, document, simulate_production

    began = time.monotonic()
    print_note(f"incident at production scale, seed {seed}: nine runs of the protocol alone")
    found = simulate_production(seed, PRODUCTION, _tell)
    report = document(found, time.monotonic() - began)
    if json:
        print_json(report)
    else:
        _show(found)
        console(stderr=False).print(f"{report['seconds']} s")
    raise typer.Exit(ExitCode.NOTHING_FOUND if report["ok"] else ExitCode.FOUND)


def _tell(run: "RunFacts") -> None:
    print_note(f"  {run.name}: {_words(run.statuses)}, {run.leaked} leaked, {run.wrong} wrong ({run.seconds:.0f} s)")


def _words(statuses: dict[str, int]) -> str:
    return ", ".join(f"{count} x {status}" for status, count in statuses.items())


def _show(found: "Findings") -> None:
    scale = found.scale
    title = (
        f"The incident at its own scale (simulated, seed {found.seed}): context {scale.context:,}, "
        f"{scale.num_oversize} prompts over a prefill pool of {scale.prefill:,}, decode pool {scale.decode:,}, "
        f"pages of {scale.page_size}"
    )
    columns = ("run", "prefill pool", "guards there again", "answers over the pool", "leaked", "wrong", "other answers")
    rows = [
        (
            run.name,
            f"{run.prefill_tokens:,}",
            ", ".join(run.guards) or "-",
            _words(run.statuses),
            run.leaked,
            run.wrong,
            _words(run.others),
        )
        for run in found.runs
    ]
    print_table(title, columns, rows, stderr=False)
    checks = [("pass" if passed else "FAIL", name) for name, passed in found.checks.items()]
    print_table("Checks", ("", "check"), checks, stderr=False)
    if found.story is not None:
        steps = [(step.number, step.title, step.text) for step in found.story.steps]
        title = f"Seven steps, from the recorded trace of {found.story.request}"
        print_table(title, ("", "step", "seen"), steps, stderr=False)
    for problem in found.problems:
        print_error(problem)
