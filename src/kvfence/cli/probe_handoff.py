"""``kvfence probe handoff``: one's own prefill/decode pair, given hand-offs that are not what they say.

Not for: the cases and what they show (``kvfence.probe.handoff``).
"""

import asyncio
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import json as msgspec_json

from kvfence.cli.exits import ExitCode
from kvfence.cli.render import console, print_error, print_json, print_note, print_table
from kvfence.cli.shared_options import SEED_MAX, Authorities, Out, agrees
from kvfence.cli.written import refuse_unwritable
from kvfence.core.errors import SettingsError

if TYPE_CHECKING:
    from kvfence.probe.handoff.bench import Case
    from kvfence.probe.handoff.pair import Site
    from kvfence.probe.handoff.report import Document
    from kvfence.probe.handoff.run import Engine, Record, Run

app = typer.Typer()

EPILOGUE = """
Only ask a pair that is yours and that serves nobody else: a case may read what a block held last.

Examples:

kvfence probe handoff --engine vllm --list

kvfence probe handoff --engine vllm --prefill http://127.0.0.1:8101 --decode http://127.0.0.1:8102 --all --yes --json
"""

Key = Annotated[str, typer.Option("--api-key-env", metavar="VAR", help="Variable that holds the workers' key.")]
Keep = Annotated[bool, typer.Option("--keep-evidence", help="Keep texts that leaked; default: digests and lengths.")]

Forged = Annotated[
    bool,
    typer.Option("--forged-reference", help="One tenant's prompt with the other's hand-off."),
]
Poisoned = Annotated[
    bool,
    typer.Option("--poisoned-prefix", help="That prompt again, honestly: what has the prefix cache kept?"),
]
TooMany = Annotated[
    bool,
    typer.Option("--one-block-too-many", help="Prefill computes a block more."),
]
TooFew = Annotated[
    bool,
    typer.Option("--one-block-too-few", help="A block less. May end the engine: needs --allow-crash."),
]
RefusedPrompt = Annotated[
    bool,
    typer.Option("--refused-prompt", help="SGLang: a prompt that prefill alone refuses."),
]


@app.command("handoff", epilog=EPILOGUE)
def handoff(
    engine: Annotated[str, typer.Option(help="vllm (NixlConnector) or sglang.")] = "vllm",
    prefill: Annotated[str, typer.Option(metavar="URL", help="The prefill worker itself, not a proxy.")] = "",
    decode: Annotated[str, typer.Option(metavar="URL", help="The decode worker itself.")] = "",
    short_count: Annotated[bool, typer.Option("--short-count", help="Prefill computes one token.")] = False,
    stale_lease: Annotated[bool, typer.Option("--stale-lease", help="Decode comes after the lease.")] = False,
    forged_reference: Forged = False,
    poisoned_prefix: Poisoned = False,
    one_block_too_many: TooMany = False,
    one_block_too_few: TooFew = False,
    replayed: Annotated[bool, typer.Option("--replayed", help="One hand-off twice.")] = False,
    unknown_block: Annotated[bool, typer.Option("--unknown-block", help="Blocks that do not exist.")] = False,
    refused_prompt: RefusedPrompt = False,
    every: Annotated[bool, typer.Option("--all", help="Every case that is not to end the engine.")] = False,
    allow_crash: Annotated[bool, typer.Option("--allow-crash", help="Cases that may end decode, too.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Show the cases, and end.")] = False,
    model: Annotated[str, typer.Option(help="Its name in the API; default: the first that prefill lists.")] = "",
    tries: Annotated[int, typer.Option(min=1, max=5, help="Of each case, until it is found.")] = 2,
    lease_s: Annotated[float, typer.Option(min=0.5, help="How long prefill keeps pages (kv_lease_duration).")] = 30.0,
    block_size: Annotated[int, typer.Option(min=0, help="Tokens of a block; default: as the workers say.")] = 0,
    timeout_s: Annotated[float, typer.Option(min=1.0, help="How long one answer is waited for.")] = 330.0,
    seed: Annotated[int | None, typer.Option(min=0, max=SEED_MAX, help="Draws the same markers again.")] = None,
    api_key_env: Key = "",
    ca: Authorities = None,
    insecure_tls: Annotated[bool, typer.Option("--insecure-tls", help="Check no certificate.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before it starts.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    out: Out = None,
    keep_evidence: Keep = False,
) -> None:
    """Give your own pair hand-offs that are not what they say, and look at what decode answers.

    Speaks to both workers as their proxy does, with canaries of two tenants of its own. Each case has its flag. Exit 0:
    every case was refused or answered correctly; 1: a leak, a wrong text or a crash; 3: it could not tell.
    """
    from kvfence.probe.handoff.run import CASES, Run

    chosen = _one_of(engine)
    if listed:
        _list(CASES[chosen], json)
        return
    flags = {
        "short-count": short_count, "stale-lease": stale_lease, "forged-reference": forged_reference,
        "poisoned-prefix": poisoned_prefix, "one-block-too-many": one_block_too_many, "replayed": replayed,
        "one-block-too-few": one_block_too_few, "unknown-block": unknown_block, "refused-prompt": refused_prompt,
    }  # fmt: skip
    named = {name for name, given in flags.items() if given}
    run = Run(
        engine=chosen,
        site=_site(prefill, decode, api_key_env, ca, insecure_tls),
        cases=_cases(CASES[chosen], named, every=every, allow_crash=allow_crash),
        seed=secrets.randbits(63) if seed is None else seed,
        tries=tries,
        lease_s=lease_s,
        block_size=block_size,
    )
    refuse_unwritable({"--out": out})
    run = _with_site(run, model, timeout_s)
    _announce(run)
    if dry_run:
        return
    if not yes:
        _require_agreement()
    _end(_carried_out(run), json, out, keep_evidence)


def _one_of(text: str) -> "Engine":
    from kvfence.probe.handoff.run import Engine

    try:
        return Engine(text)
    except ValueError as error:
        raise SettingsError([f"--engine {text}: one of {', '.join(Engine)}"]) from error


def _list(cases: "tuple[Case, ...]", json: bool) -> None:
    from kvfence.probe.handoff.report import CATALOGUE, catalogue_rows

    if json:
        print_json([{"case": c.name, "does": c.does, "may": c.may, "crashes": c.crashes} for c in cases])
    else:
        print_table("", CATALOGUE, catalogue_rows(cases), stderr=False)


def _cases(known: "tuple[Case, ...]", named: set[str], *, every: bool, allow_crash: bool) -> "tuple[Case, ...]":
    """Give the cases that are wanted, in their order: what may end the engine comes last, and with leave alone."""
    foreign = sorted(named - {case.name for case in known})
    wanted = [case for case in known if case.name in named or (every and (allow_crash or not case.crashes))]
    wrong = [f"--{name}: not a case of this engine; --list shows them" for name in foreign]
    wrong += [f"--{c.name}: it may end decode; add --allow-crash" for c in wanted if c.crashes and not allow_crash]
    if not wanted and not wrong:
        wrong.append("no case: name some, or --all; --list shows them")
    if wrong:
        raise SettingsError(wrong)
    return tuple(wanted)


def _site(prefill: str, decode: str, key_name: str, ca: Path | None, insecure: bool) -> "Site":
    from kvfence.probe.door import is_field_value, verify_of
    from kvfence.probe.handoff.pair import Role, Site

    missing = [
        f"--{role}: name this worker's own URL" for role, url in (("prefill", prefill), ("decode", decode)) if not url
    ]
    key = os.environ.get(key_name, "") if key_name else ""
    if key_name and not (key and is_field_value(key)):
        missing.append(f"--api-key-env {key_name}: this variable is not set, or its value cannot be a header")
    if missing:
        raise SettingsError(missing)
    urls = {Role.PREFILL: _url(prefill, "--prefill"), Role.DECODE: _url(decode, "--decode")}
    if urls[Role.PREFILL] == urls[Role.DECODE]:
        raise SettingsError(["--decode: the same worker as --prefill; name two"])
    return Site(urls=urls, key=key, verify=verify_of(ca, insecure))


def _url(text: str, option: str) -> str:
    from kvfence.probe.door import base_url_of

    try:
        return base_url_of(text).removesuffix("/v1")
    except SettingsError as error:
        raise SettingsError([each.replace("--base-url", option) for each in error.problems]) from error


def _with_site(run: "Run", model: str, timeout_s: float) -> "Run":
    from msgspec.structs import replace

    return replace(run, site=replace(run.site, model=model, timeout_s=timeout_s))


def _announce(run: "Run") -> None:
    """Say what will be sent, and what that may do."""
    from kvfence.probe.handoff.pair import Role
    from kvfence.probe.handoff.report import CATALOGUE, catalogue_rows

    urls = run.site.urls
    print_table(f"to prefill {urls[Role.PREFILL]}, decode {urls[Role.DECODE]}", CATALOGUE, catalogue_rows(run.cases))
    print_note(
        f"at most {run.requests_max} requests, one at a time, of some tens of tokens each and a sound hand-off first"
    )
    print_note("what a block held last may be read: run it on a pair of your own that serves nobody else")
    if any(case.crashes for case in run.cases):
        print_note("THE DECODE ENGINE MAY END, for everybody that it serves; have it restarted")
    print_note(f"seed {run.seed}: --seed {run.seed} draws the same again")


def _require_agreement() -> None:
    """Ask on a terminal; elsewhere ``--yes`` must have said so."""
    if not sys.stdin.isatty():
        raise SettingsError(["--yes: say so where nobody can be asked; --dry-run shows what would be sent"])
    if not agrees():
        raise typer.Exit(ExitCode.COULD_NOT_TELL)


def _carried_out(run: "Run") -> "Record":
    """Run to the end, which Ctrl-C and SIGTERM bring forward alike."""
    from kvfence.probe.handoff.run import probe

    async def stoppable() -> "Record":
        if task := asyncio.current_task():
            for each in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(each, task.cancel)
        return await probe(run, lambda found: print_note(f"{found.case.name}: {found.answer}"))

    return asyncio.run(stoppable())


def _end(record: "Record", json: bool, out: Path | None, keep_evidence: bool) -> None:
    """Show the report, write it, and exit as it says."""
    from kvfence.probe.handoff.report import ROWS, make_document, rows
    from kvfence.probe.handoff.trial import Answer

    document = make_document(record, keep_evidence)
    if json:
        print_json(document)
    else:
        print_table("", ROWS, rows(document), stderr=False)
        last = f"{document.verdict}: {document.why}" if document.why else str(document.verdict)
        console(stderr=False).print(last, markup=False)
    if out is not None:
        _write(document, out)
    if document.verdict.is_bad:
        raise typer.Exit(ExitCode.FOUND)
    raise typer.Exit(ExitCode.COULD_NOT_TELL if document.verdict is Answer.UNKNOWN else ExitCode.NOTHING_FOUND)


def _write(document: "Document", out: Path) -> None:
    try:
        out.write_bytes(msgspec_json.format(msgspec_json.encode(document), indent=2) + b"\n")
    except OSError as error:
        print_error(f"--out {out}: not written: {error.strerror}; the verdict on stdout stands")
