"""``kvfence probe``: does this endpoint leak? Canaries through the front door, with a statistical verdict.

Not for: sending (``kvfence.probe``), showing what is sent and how far it is (``probe_progress.py``).
"""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kvfence.cli.exits import ExitCode
from kvfence.cli.probe_handoff import app as handoff
from kvfence.cli.probe_progress import Progress, show_plan
from kvfence.cli.probe_report import Forms, present
from kvfence.cli.render import print_error, print_note
from kvfence.cli.shared_options import SEED_MAX, Authorities, Html, Out, agrees, require_finite
from kvfence.core.errors import SettingsError
from kvfence.evidence.visible import plain

if TYPE_CHECKING:
    from kvfence.probe.door import Door
    from kvfence.probe.exchange import Phase
    from kvfence.probe.run import Look, Run

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")

app = typer.Typer(no_args_is_help=True)

CONTEXT_MAX = 100_000_000
SIMULATED = 4
"""Tenants under one key, where fewer than two keys are named."""

_UNFIT = "cannot be a header: printable ASCII, with no space or line end around it"

EPILOGUE = """
Only ask a server that is yours, or that you may test: canaries are made to come out where they should not.

Examples:

kvfence probe run --base-url http://127.0.0.1:8000 --max-requests 200

kvfence probe run --base-url https://llm.example/v1 --model large --api-key-env KEY_A --api-key-env KEY_B
--price-in 0.5 --price-out 1.5 --max-cost 20 --json --out report.json
"""


@app.callback()
def probe() -> None:
    """Does an endpoint answer one caller with another's text? Asks it, through the front door."""


app.registered_commands += handoff.registered_commands

Keys = Annotated[
    list[str] | None,
    typer.Option("--api-key-env", metavar="VAR", help="Variable that holds a key; several: several tenants."),
]
Headers = Annotated[
    list[str] | None, typer.Option("--header-env", metavar="NAME=VAR", help="A header, its value from a variable.")
]
Phases = Annotated[
    str, typer.Option(help="Some, with commas: seed, oversize, abort, pressure, prefix, replay; default: all.")
]
Seed = Annotated[
    int | None, typer.Option(min=0, max=SEED_MAX, help="Draws the same again; default: a new one, and told.")
]
Context = Annotated[
    int | None,
    typer.Option(min=64, max=CONTEXT_MAX, help="Its context in tokens, where /models (of a router, say) names none."),
]
Price = Annotated[float | None, typer.Option(min=0.0, help="Per million tokens, for the estimate.")]
Keep = Annotated[
    bool, typer.Option("--keep-evidence", help="Keep foreign text that was found; default: digests and lengths.")
]
JUnit = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as JUnit XML.")]
Reproducer = Annotated[Path | None, typer.Option(metavar="FILE", help="Of a leak: a script that asks again with curl.")]


@app.command("run", epilog=EPILOGUE)
def run(
    base_url: Annotated[str, typer.Option(help="Where it is: http://HOST:PORT or https://HOST/v1.")],
    model: Annotated[str, typer.Option(help="Its name in the API; default: the first that it lists.")] = "",
    api_key_env: Keys = None,
    header_env: Headers = None,
    api: Annotated[str, typer.Option(help="chat, completions, or auto: the one that echoes better.")] = "auto",
    phases: Phases = "",
    seed: Seed = None,
    max_requests: Annotated[int, typer.Option(min=12, help="The run is divided into so many.")] = 400,
    max_tokens_total: Annotated[int, typer.Option(min=1000, help="Of prompts and answers together.")] = 20_000_000,
    max_minutes: Annotated[float | None, typer.Option(min=0.1, help="Phases shrink to fit.")] = None,
    context: Context = None,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Requests open at once.")] = 16,
    max_cost: Annotated[float | None, typer.Option(min=0.0, help="Needs --price-in or --price-out.")] = None,
    price_in: Price = None,
    price_out: Price = None,
    ca: Authorities = None,
    insecure_tls: Annotated[bool, typer.Option("--insecure-tls", help="Check no certificate.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before it starts.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    out: Out = None,
    html: Html = None,
    junit: JUnit = None,
    reproducer: Reproducer = None,
    keep_evidence: Keep = False,
) -> None:
    """Ask a server of your own whether it answers one caller with another's text.

    Sends canaries, prompts that hold markers of its own, and looks for them in other tenants' answers. Exit 0: clean,
    within the bound that it says; 1: a leak, or a suspicion; 3: it could not tell.
    """
    from msgspec.structs import replace

    from kvfence.probe.budget import Budget
    from kvfence.probe.door import Api
    from kvfence.probe.run import Run, look
    from kvfence.probe.run import probe as carry_out

    forms = Forms(json, out, html, junit, reproducer, keep_evidence)
    numbers = {"--max-minutes": max_minutes, "--max-cost": max_cost, "--price-in": price_in, "--price-out": price_out}
    _require_sound(forms, model, numbers)
    door = _door(base_url, api_key_env or [], header_env or [], ca, insecure_tls)
    door = replace(door, model=model, api=None if api == "auto" else _one_of(Api, api, "--api"))
    budget = Budget(
        requests_max=max_requests,
        tokens_max=max_tokens_total,
        minutes_max=max_minutes,
        concurrency=concurrency,
        cost_max=max_cost,
        price_in=price_in,
        price_out=price_out,
    )
    seen = _carried_out(look(door))
    asked = Run(
        door=_with_model(door, seen),
        budget=budget,
        seed=secrets.randbits(63) if seed is None else seed,
        phases=_phases(phases),
    )
    _announce(asked, context or seen.context, len(api_key_env or []))
    if dry_run:
        return
    if not yes and sys.stdin.isatty() and not agrees():  # elsewhere nobody is there to answer, and the budgets hold
        raise typer.Exit(ExitCode.COULD_NOT_TELL)
    with Progress() as progress:
        record = _carried_out(carry_out(asked, context or seen.context, progress.see))
    raise typer.Exit(present(record, forms))


def _carried_out(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, which Ctrl-C and SIGTERM bring forward alike; what has no end to bring forward could not tell."""

    async def stoppable() -> T:
        if task := asyncio.current_task():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(stoppable())
    except (asyncio.CancelledError, KeyboardInterrupt):
        print_note("stopped")
        raise typer.Exit(ExitCode.COULD_NOT_TELL) from None


def _door(base_url: str, key_names: list[str], header_names: list[str], ca: Path | None, insecure: bool) -> "Door":
    from kvfence.probe.door import Door, base_url_of, verify_of

    verify = verify_of(ca, insecure)
    keys, names = _keys(key_names)
    url = base_url_of(base_url)
    headers, variables = _headers(header_names)
    return Door(
        base_url=url,
        model="",
        keys=keys,
        key_names=names,
        headers=headers,
        header_names=variables,
        verify=verify,
        ca="" if ca is None else str(ca),
    )


def _announce(asked: "Run", context: int | None, keys: int) -> None:
    """Say what will be sent, as whom, and how to send it again."""
    from kvfence.probe.plan import make_plan

    show_plan(asked.door, asked.budget, make_plan(asked.budget, asked.ordered, context))
    tenants = len(asked.door.tenants)
    if keys == 0:
        print_note(f"no key was named: {tenants} tenants are simulated, and the server sees one caller")
    elif keys == 1:
        print_note(f"one key was named: {tenants} tenants are simulated under it: one caller to the server")
    print_note(f"seed {asked.seed}: --seed {asked.seed} draws the same again")


def _keys(names: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Give each tenant its key and its variable's name; with fewer than two keys, tenants are simulated."""
    from kvfence.probe.door import is_field_value

    wrong = [f"--api-key-env {plain(name)}: this variable is not set" for name in names if not os.environ.get(name)]
    unfit = [name for name in names if not is_field_value(os.environ.get(name, ""))]
    wrong += [f"--api-key-env {plain(name)}: its value {_UNFIT}" for name in unfit]
    values = [os.environ.get(name, "") for name in names]
    again = [name for index, name in enumerate(names) if values[index] and values[index] in values[:index]]
    wrong += [
        f"--api-key-env {plain(name)}: the key of another one; several tenants need several keys" for name in again
    ]
    if wrong:
        raise SettingsError(wrong)
    of = names if len(names) > 1 else (names or [""]) * SIMULATED
    tenants = [f"tenant-{number + 1}" for number in range(len(of))]
    keys = {tenant: os.environ.get(name, "") if name else "" for tenant, name in zip(tenants, of, strict=True)}
    return keys, {tenant: name for tenant, name in zip(tenants, of, strict=True) if name}


def _headers(pairs: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Give each header its value and its variable's name."""
    from kvfence.probe.door import is_field_name, is_field_value

    found, variables, wrong = {}, {}, []
    for pair in pairs:
        name, mark, variable = pair.partition("=")
        value = os.environ.get(variable, "")
        if not name or not mark or not value:
            wrong.append("--header-env: write NAME=VAR, where VAR is a variable that is set")
        elif not is_field_name(name):
            wrong.append(f"--header-env: write NAME={plain(variable)} with a NAME of letters, digits and hyphens")
        elif not is_field_value(value):
            wrong.append(f"--header-env: the value of {plain(variable)} {_UNFIT}")
        found[name.lower()], variables[name.lower()] = value, variable
    if wrong:
        raise SettingsError(wrong)
    return found, variables


def _require_sound(forms: Forms, model: str, numbers: dict[str, float | None]) -> None:
    """Refuse what would fail only after requests were sent."""
    require_finite(numbers)
    if numbers["--max-cost"] is not None and not numbers["--price-in"] and not numbers["--price-out"]:
        raise SettingsError(["--max-cost: name --price-in and --price-out, per million tokens, with it"])
    forms.require_writable()
    try:
        model.encode()
    except UnicodeEncodeError as error:
        raise SettingsError(["--model: this is no UTF-8 text, so it cannot be sent; write it in UTF-8"]) from error


def _with_model(door: "Door", seen: "Look") -> "Door":
    from msgspec.structs import replace

    if door.model:
        return door
    if seen.hindrance:
        print_error(f"no connection to {door.base_url}: {seen.hindrance}")
        raise typer.Exit(ExitCode.COULD_NOT_TELL)
    if not seen.names:
        raise SettingsError(["--model: the server lists none at /models; name the one to ask"])
    return replace(door, model=seen.names[0])


def _phases(text: str) -> "tuple[Phase, ...]":
    from kvfence.probe.exchange import Phase
    from kvfence.probe.run import PHASES

    given = [each.strip() for each in text.split(",") if each.strip()]
    return tuple(_one_of(Phase, each, "--phases") for each in given) or tuple(PHASES)


def _one_of(kind: "type[E]", text: str, option: str) -> "E":
    try:
        return kind(text)
    except ValueError as error:
        raise SettingsError([f"{option} {text}: one of {', '.join(kind)}"]) from error
