"""``kvfence incident``: replay the incident on the real engine, or with ``--sim`` on the protocol alone.

Shows what was found. Not for: starting servers (``incident_stage.py``) or playing runs (``kvfence.incident``).
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvfence.cli.exits import ExitCode
from kvfence.cli.incident_scale import play_at_scale
from kvfence.cli.render import console, print_error, print_json, print_note, print_table, progress
from kvfence.cli.written import refuse_unwritable
from kvfence.core.errors import KvfenceError, SettingsError

if TYPE_CHECKING:
    from kvfence.cli.compose import ServedModel
    from kvfence.cli.incident_stage import Stage
    from kvfence.incident.findings import SeedFindings
    from kvfence.incident.runs import Run
    from kvfence.incident.scenarios import Scenario
    from kvfence.incident.story import Sample

app = typer.Typer()

EPILOGUE = """
Examples:

kvfence incident

kvfence incident --html incident.html

kvfence incident --sim --json

kvfence incident --scale production
"""


class Scale(StrEnum):
    """How large the incident is played."""

    SMALL = "small"
    PRODUCTION = "production"


@app.command(epilog=EPILOGUE)
def incident(
    sim: Annotated[bool, typer.Option("--sim", help="The protocol alone: no model, no extra, a few seconds.")] = False,
    model: Annotated[str, typer.Option("--model", help="Checkpoint; default: the embedded model.")] = "",
    first: Annotated[int, typer.Option("--seed", help="First seed: markers, sizes, order.")] = 1,
    num_seeds: Annotated[int, typer.Option("--seeds", help="How many seeds, one after the other.", min=1)] = 1,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page that tells it.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    keep: Annotated[Path | None, typer.Option("--keep", help="Keep traces and logs in this folder.")] = None,
    scale: Annotated[
        Scale, typer.Option("--scale", help="production: the incident's own sizes, from the protocol alone.")
    ] = Scale.SMALL,
) -> None:
    """Replay the cross-request KV cache exposure, and show what the guards change.

    Other tenants' texts hold markers; 27 prompts do not fit prefill's small pool. Played with small and large pools,
    with and without the guards that the incident's engine lacked, on one process, and with the memory fraction
    lowered. Exits 0 if everything that must be seen was seen, else 1.
    """
    if scale is Scale.PRODUCTION:
        _refuse_with_scale({"--model": model, "--html": html, "--keep": keep, "--seeds": num_seeds > 1})
        play_at_scale(first, json=json)
    began = time.monotonic()
    refuse_unwritable({"--html": html})
    seeds = range(first, first + num_seeds)
    found = _simulate(seeds) if sim else _replay(seeds, model, keep)
    from kvfence.incident.findings import document

    report = document(found, time.monotonic() - began, "simulation" if sim else "real engine")
    if html is not None:
        from kvfence.incident.page import render_page

        html.write_text(render_page(found, report), encoding="utf-8")
    if json:
        print_json(report)
    else:
        _show(found, report, html)
    raise typer.Exit(ExitCode.NOTHING_FOUND if report["ok"] else ExitCode.FOUND)


def _refuse_with_scale(given: dict[str, object]) -> None:
    """Its runs are the protocol's alone, of one seed: no model, no traces kept, no page."""
    if wrong := [name for name, value in given.items() if value]:
        raise SettingsError([f"{name} does not go with --scale production: leave it out" for name in wrong])


def _simulate(seeds: Sequence[int]) -> "list[SeedFindings]":
    from kvfence.incident.simulated import simulate

    return [simulate(seed) for seed in seeds]


# ---- the real engine


def _replay(seeds: Sequence[int], model_path: str, keep: Path | None) -> "list[SeedFindings]":
    from kvfence.cli.compose import find_model
    from kvfence.core.settings import ModelSettings, Settings

    with progress("embedded model") as report:
        model = find_model(Settings(model=ModelSettings(path=model_path)), report)
    with tempfile.TemporaryDirectory(prefix="kvfence-incident-") as work:
        return asyncio.run(_replay_all(seeds, model, keep or Path(work)))


async def _replay_all(seeds: Sequence[int], model: "ServedModel", folder: Path) -> "list[SeedFindings]":
    from kvfence.cli.incident_stage import Stage
    from kvfence.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model.path)
    found = []
    for seed in seeds:
        print_note(f"incident, seed {seed}: six runs on {model.name}")
        found.append(await _replay_seed(seed, Stage(model, tokenizer), folder / f"seed-{seed}"))
    return found


async def _replay_seed(seed: int, stage: "Stage", folder: Path) -> "SeedFindings":
    """Play the lanes side by side, each lane's runs one after the other."""
    from kvfence.incident.findings import judge
    from kvfence.incident.runs import facts_of, sample_of
    from kvfence.incident.scenarios import SMALL_UNGUARDED

    async def lane(scenarios: "tuple[Scenario, ...]") -> "list[Run]":
        return [await _play(scenario, seed, stage, folder) for scenario in scenarios]

    try:
        async with asyncio.TaskGroup() as tasks:
            lanes = [tasks.create_task(lane(scenarios)) for scenarios in stage.lanes()]
    except* KvfenceError as group:
        raise group.exceptions[0] from None
    runs = [run for done in lanes for run in done.result()]
    small = next(run for run in runs if run.scenario == SMALL_UNGUARDED)
    return judge(seed, (facts_of(run) for run in runs), sample_of(small, stage.draw(SMALL_UNGUARDED, seed)))


async def _play(scenario: "Scenario", seed: int, stage: "Stage", folder: Path) -> "Run":
    from kvfence.incident.runs import play

    run = await play(scenario, stage.draw(scenario, seed), folder / scenario.name, stage.open)
    print_note(f"  {scenario.name}: {_words(run.statuses)}, {len(run.leaked)} leaked ({run.wall_s:.0f} s)")
    return run


def _words(statuses: dict[str, int]) -> str:
    return ", ".join(f"{count} x {status}" for status, count in statuses.items())


# ---- tables


def _show(found: "Sequence[SeedFindings]", report: dict[str, Any], html: Path | None) -> None:
    for each in found:
        title = f"The incident, replayed ({report['kind']}, seed {each.seed})"
        columns = (
            "run",
            "prefill pool",
            "guards away",
            "oversize answers",
            "leaked",
            "status alarms",
            "marker alarms",
            "readable",
        )
        rows = [
            (
                run.name,
                run.pool_tokens,
                "none" if run.guards == "all" else "the incident's",
                _words(run.statuses),
                run.leaked,
                run.status_alarms,
                run.marker_alarms,
                "-" if run.text_markers is None else str(run.text_markers),
            )
            for run in each.runs.values()
        ]
        print_table(title, columns, rows, stderr=False)
    out = console(stderr=False)
    checks = [("pass" if check["pass"] else "FAIL", check["name"]) for check in report["checks"]]
    print_table("Checks", ("", "check"), checks, stderr=False)
    if found[0].sample is not None:
        _show_story(found[0].sample)
    for problem in report["problems"]:
        print_error(problem)
    out.print(f"{report['seconds']} s" + (f"; the whole of it as a page: {html.resolve()}" if html is not None else ""))


def _show_story(sample: "Sample") -> None:
    rows = [(step.number, step.title, step.text) for step in sample.steps]
    print_table(f"Seven steps, from the recorded trace of {sample.request}", ("", "step", "seen"), rows, stderr=False)
    if sample.answer:
        texts = [
            ("what it was answered", repr(sample.answer)),
            (f"what {sample.source_tenant} had sent", repr(sample.source)),
        ]
        print_table(
            "One leaked answer beside its source (made-up texts of this test)", ("", "text"), texts, stderr=False
        )
