"""``kvfence prove sim``: many seeds of the closed world, what broke, what was met; and how good it is at finding.

Shows what was found. Not for: running (``kvfence.sim``).
"""

import importlib.util
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvfence.cli.beside import refuse_beside
from kvfence.cli.exits import ExitCode
from kvfence.cli.render import console, print_error, print_json, print_note, print_table
from kvfence.core.errors import SettingsError

if TYPE_CHECKING:
    from kvfence.protocol.guards import Rules
    from kvfence.sim.campaign import Campaign
    from kvfence.sim.judge import Hits, Mutant
    from kvfence.sim.shrink import Shrunk
    from kvfence.sim.world import World

app = typer.Typer()

NOTE_EVERY_S = 5.0

EPILOGUE = """
Examples:

kvfence prove sim --runs 2000

kvfence prove sim --without quarantine-on-revoke --shrink

kvfence prove sim --seed 17 --trace FOLDER

kvfence prove sim --judge
"""


@app.command(epilog=EPILOGUE)
def sim(
    context: typer.Context,
    runs: Annotated[int, typer.Option("--runs", help="How many seeds, from 0.", min=1)] = 500,
    seed: Annotated[int | None, typer.Option("--seed", help="This seed alone.")] = None,
    seeds: Annotated[str, typer.Option("--seeds", metavar="A:B", help="Seeds A to B, B left out.")] = "",
    minutes: Annotated[float, typer.Option("--minutes", help="Stop after so long; 0: never.", min=0)] = 0,
    without: Annotated[list[str] | None, typer.Option("--without", metavar="GUARD", help="Take a guard away.")] = None,
    mutant: Annotated[str, typer.Option("--mutant", metavar="NAME", help="Plant a known mistake; ?: name them.")] = "",
    shrink: Annotated[bool, typer.Option("--shrink", help="Make the first failing run short and tell it.")] = False,
    judge: Annotated[bool, typer.Option("--judge", help="Plant every known mistake, over symbols.")] = False,
    real: Annotated[
        bool | None,
        typer.Option("--bytes/--symbols", help="Records of bytes, sealed and compared; default where numpy is."),
    ] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="With --seed: write every node's trace there.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Simulate the production nodes and drivers under every fault: losses, deaths, late, torn and misdirected writes.

    One seed draws everything and replays exactly. Exits 0 where no property broke, 1 where one did; with --judge 0
    where every mutant was found, 1 where not.
    """
    if judge:
        refuse_beside(context, "--judge", ("judge", "json", *(("real",) if real is False else ())))
        raise typer.Exit(_judge_all(json=json))
    for name, given, others in (
        ("--seed", seed is not None, ("runs", "seeds", "minutes")),
        ("--seeds", seeds, ("runs",)),
    ):
        if given:
            refuse_beside(context, name, {str(each.name) for each in context.command.params}.difference(others))
    if trace is not None and seed is None:
        raise SettingsError(["--trace writes one run's traces: name its --seed"])
    if trace is not None and any(trace.glob("*.ndjson*")):
        raise SettingsError([f"--trace {trace}: it holds traces already, of another run; name an empty folder"])
    began = time.process_time()
    chosen = _chosen(runs, seed, seeds)
    build = _builder(without or [], mutant, real=_has_numpy() if real is None else real)
    if trace is not None and seed is not None:
        _record(build(seed), trace)
    campaign, failed = _run(chosen, build, minutes)
    found = _shrink(build(failed[0]), failed[1]) if shrink and failed else None
    seconds = time.process_time() - began
    if json:
        print_json({"pages": "bytes" if build.real else "symbols", **_document(campaign, failed, found, seconds)})
    else:
        console(stderr=False).print(f"Pages are {'records of bytes' if build.real else 'symbols'}.")
        _show(campaign, found, seconds)
    raise typer.Exit(ExitCode.FOUND if campaign.broken else ExitCode.NOTHING_FOUND)


def _chosen(runs: int, seed: int | None, seeds: str) -> Iterable[int]:
    if seed is not None:
        return [seed]
    if not seeds:
        return range(runs)
    first, colon, last = seeds.partition(":")
    if not colon or not (first.isdigit() and last.isdigit()) or int(first) >= int(last):
        raise SettingsError([f"--seeds {seeds}: write A:B with A below B, as 0:500"])
    return range(int(first), int(last))


class _Builder:
    """Builds the world of a seed: under every fault, or with one mistake planted."""

    def __init__(self, rules: "Rules", planted: "Mutant | None", *, real: bool) -> None:
        self.rules, self.planted, self.real = rules, planted, real

    def __call__(self, seed: int) -> "World":
        from msgspec.structs import replace

        from kvfence.sim.campaign import world_of
        from kvfence.sim.cases import world_of_case
        from kvfence.sim.world import World

        if self.planted is not None:
            drawn = world_of_case(self.planted.case, self.planted.rules, seed)
        else:
            drawn = world_of(seed, self.rules)
        return World(replace(drawn.setup, real=True), drawn.waiting) if self.real else drawn


def _has_numpy() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("numpy", "xxhash", "psutil"))


def _builder(without: list[str], mutant: str, *, real: bool) -> _Builder:
    from kvfence.protocol.guards import ASKED, GUARDS, Rules
    from kvfence.sim.judge import mutants

    if unknown := [name for name in without if name not in GUARDS and name not in ASKED]:
        raise SettingsError([f"--without {name}: the guards are {', '.join(GUARDS)}" for name in unknown])
    known = {each.name: each for each in mutants() if each.case.play is None}
    if mutant and (mutant not in known or without):
        why = "does not go with --without" if mutant in known else f"the mutants are {', '.join(known)}"
        raise SettingsError([f"--mutant {mutant}: {why}"])
    return _Builder(Rules.without(*without) if without else Rules.all(), known.get(mutant), real=real)


def _run(seeds: Iterable[int], build: _Builder, minutes: float) -> "tuple[Campaign, tuple[int, str] | None]":
    """Run seeds until they or the time are over; give the first that broke a property, and which first."""
    from kvfence.sim.campaign import Campaign
    from kvfence.sim.shrink import finish

    campaign, failed, began = Campaign(), None, time.monotonic()
    told, until = began, began + minutes * 60
    for seed in seeds:
        world = finish(build(seed))
        campaign.add(seed, world)
        if world.broken and failed is None:
            failed = (seed, min(world.broken, key=lambda name: world.broken[name]))
        now = time.monotonic()
        if now - told > NOTE_EVERY_S:
            rate = campaign.num_runs / (now - began)
            print_note(f"sim: {campaign.num_runs} runs, {rate:.0f} a second, {len(campaign.broken)} properties broken")
            told = now
        if minutes and now > until:
            break
    return campaign, failed


def _shrink(world: "World", name: str) -> "Shrunk":
    from kvfence.sim.shrink import shrink

    return shrink(world.setup, world.waiting, name)


def _record(world: "World", folder: Path) -> None:
    """Write what each node of a run saw and did: the same bytes for the same seed."""
    from kvfence.sim.recording import Recording
    from kvfence.sim.shrink import finish
    from kvfence.sim.world import World

    folder.mkdir(parents=True, exist_ok=True)
    recording = Recording(folder)
    finish(World(world.setup, world.waiting, recording))
    for path in recording.close():
        print_note(f"trace: {path}")


# ---- what was found


def _coverage(campaign: "Campaign") -> "Iterator[tuple[str, int, int, int]]":
    """Give each guard that was asked, with how often it passed, refused, and was not obeyed."""
    keys = sorted({(guard, place) for guard, place, _ in campaign.decisions})
    for guard, place in keys:
        passed, refused, ignored = (campaign.decisions.get((guard, place, a), 0) for a in ("pass", "refuse", "ignored"))
        yield f"{guard}@{place}", passed, refused, ignored


def _never(campaign: "Campaign") -> dict[str, list[str]]:
    """Name what these runs say nothing of: guards never asked or that never refused, *sometimes* never reached."""
    from kvfence.protocol.guards import ASKED
    from kvfence.protocol.properties import SOMETIMES

    asked = {name: refused + ignored for name, _, refused, ignored in _coverage(campaign)}
    return {
        "guards_never_asked": sorted(ASKED - {"fence-on-start@decode"} - set(asked)),
        "guards_never_refused": sorted(name for name, noes in asked.items() if not noes),
        "sometimes_never_reached": [p.name for p in SOMETIMES if p.name not in campaign.reached],
    }


def _faults_of(campaign: "Campaign") -> dict[str, int]:
    from kvfence.sim.mishaps import FAULT_KINDS

    return {kind: count for kind, count in sorted(campaign.happened.items()) if kind in FAULT_KINDS}


def _document(
    campaign: "Campaign", failed: tuple[int, str] | None, found: "Shrunk | None", seconds: float
) -> dict[str, Any]:
    runs_per_s = round(campaign.num_runs / seconds, 1) if seconds else 0
    return {
        "schema": "kvfence-sim/1",
        "runs": campaign.num_runs,
        "steps": campaign.num_steps,
        "steps_per_run": round(campaign.num_steps / max(1, campaign.num_runs)),
        "cpu_s": round(seconds, 2),
        "runs_per_cpu_s": runs_per_s,
        "broken": {name: list(seeds) for name, seeds in campaign.broken.items()},
        "first_failure": None if failed is None else {"seed": failed[0], "property": failed[1]},
        "faults": _faults_of(campaign),
        "reached": campaign.reached,
        "guards": [{"guard": name, "passed": p, "refused": r, "ignored": i} for name, p, r, i in _coverage(campaign)],
        **_never(campaign),
        "shrunk": None if found is None else _told(found),
    }


def _told(found: "Shrunk") -> dict[str, Any]:
    course = found.course
    return {
        "property": found.property,
        "seed": course.setup.seed,
        "steps": found.num_steps,
        "requests": len(course.requests),
        "choices": len(course.choices),
        "tried": found.num_tried,
        "story": list(found.story),
    }


def _show(campaign: "Campaign", found: "Shrunk | None", seconds: float) -> None:
    out = console(stderr=False)
    faults = ", ".join(f"{count:,} {kind}" for kind, count in _faults_of(campaign).items())
    rate, per_run = campaign.num_runs / max(seconds, 1e-9), campaign.num_steps / max(1, campaign.num_runs)
    out.print(
        f"{campaign.num_runs:,} runs of {per_run:.0f} steps each, {rate:.0f} a CPU second. Faults: {faults or 'none'}"
    )
    print_table(
        "What the guards answered", ("guard", "passed", "refused", "ignored"), _coverage(campaign), stderr=False
    )
    for name, names in _never(campaign).items():
        if names:
            out.print(f"{name.replace('_', ' ')}, so these runs say nothing of them: {', '.join(names)}")
    if not campaign.broken:
        out.print("No property broke.")
    for name, seeds in campaign.broken.items():
        print_error(f"{name} broke in {len(seeds)} runs; the first seeds: {', '.join(map(str, seeds[:8]))}")
    if found is not None:
        title = f"The shortest way found to break {found.property}, seed {found.course.setup.seed}"
        print_table(title, ("step",), [(line,) for line in found.story], stderr=False)


# ---- judged by known mistakes


def _judge_all(*, json: bool) -> ExitCode:
    from kvfence.sim.judge import ELSEWHERE, FIRST_HIT_MAX, guarded, mutants
    from kvfence.sim.judge import judge as judge_one

    hits, alarms, began = [], [], time.process_time()
    for planted in mutants():
        hits.append(judge_one(planted))
        if judge_one(guarded(planted), rate_runs=3, runs_max=3).num_hits:
            alarms.append(planted.name)
        print_note(f"judge: {planted.name}: {_rate(hits[-1])}")
    missed = [each.name for each in hits if not each.first]
    if json:
        cpu_s = round(time.process_time() - began, 1)
        document = {
            "schema": "kvfence-sim-judge/1",
            "pages": "symbols",
            "bound": FIRST_HIT_MAX,
            "mutants": hits,
            "missed": missed,
        }
        print_json({**document, "false_alarms": alarms, "not_expressible": ELSEWHERE, "cpu_s": cpu_s})
    else:
        console(stderr=False).print("Pages are symbols.")
        _show_hits(hits)
        for known, why in ELSEWHERE.items():
            print_note(f"{known} is no mutant here: {why}")
    for name in missed:
        print_error(f"{name}: not found within {FIRST_HIT_MAX:,} runs")
    for name in alarms:
        print_error(f"{name}: something broke with every guard on")
    return ExitCode.FOUND if missed or alarms else ExitCode.NOTHING_FOUND


def _rate(each: "Hits") -> str:
    return f"{each.num_hits} of {each.num_runs} runs, first at run {each.first or 'none'}"


def _show_hits(hits: "list[Hits]") -> None:
    rows = [
        (each.name, " ".join(each.known_as), f"{each.num_hits}/{each.num_runs}", each.first, ", ".join(each.broken))
        for each in hits
    ]
    print_table("Planted mistakes", ("mutant", "known as", "hits", "first at run", "found as"), rows, stderr=False)
