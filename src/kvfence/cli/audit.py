"""``kvfence audit``: can this deployment leak, by what it says of itself.

The machinery is imported inside the commands: the help needs none of it.
"""

import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvfence.cli.exits import ExitCode
from kvfence.cli.render import print_error, print_json, print_note, print_table
from kvfence.core.errors import EvidenceError
from kvfence.core.verdict import Severity

if TYPE_CHECKING:
    from kvfence.audit.examine import Examined, Request
    from kvfence.audit.report.document import Document

WATCHES_MAX = 100_000

app = typer.Typer(no_args_is_help=True)


class Format(StrEnum):
    """How the result of a check is written."""

    TABLE = "table"
    JSON = "json"
    SARIF = "sarif"
    JUNIT = "junit"
    MARKDOWN = "markdown"
    HTML = "html"


Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SOURCE...",
        help="Logs, manifests, commands, configurations, kvfence.toml, URLs or - for stdin; FILE=prefill, FILE=decode "
        "or FILE=single says a role.",
    ),
]
Prefill = Annotated[list[str] | None, typer.Option("--prefill", metavar="URL|FILE", help="A prefill engine.")]
Decode = Annotated[list[str] | None, typer.Option("--decode", metavar="URL|FILE", help="A decode engine.")]
Server = Annotated[list[str] | None, typer.Option("--server", metavar="URL|FILE", help="A single-node server.")]
Token = Annotated[
    str | None, typer.Option("--token-variable", help="The environment variable that holds a bearer token for URLs.")
]
Advertised = Annotated[int | None, typer.Option("--advertised", min=1, help="The context that clients are told.")]
SingleTenant = Annotated[bool, typer.Option("--single-tenant", help="All requests are one tenant's.")]
FailOn = Annotated[Severity, typer.Option("--fail-on", help="Exit 1 from this severity on.")]


@app.callback()
def audit() -> None:
    """Can this deployment leak one tenant's KV cache into another tenant's answer? Sends no prompt."""


@app.command()
def check(
    sources: Sources = None,
    prefill: Prefill = None,
    decode: Decode = None,
    server: Server = None,
    token_variable: Token = None,
    advertised: Advertised = None,
    single_tenant: SingleTenant = False,
    pool: Annotated[
        list[str] | None, typer.Option("--pool", metavar="[ROLE=]N", help="A pool's tokens, instead of a source.")
    ] = None,
    context: Annotated[int | None, typer.Option("--context", min=1, help="The context length, with --pool.")] = None,
    page_size: Annotated[int | None, typer.Option("--page-size", min=1, help="The page size, with --pool.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="sglang, vllm, ..., with --pool.")] = None,
    engine_version: Annotated[str | None, typer.Option("--engine-version", help="Its release, with --pool.")] = None,
    fail_on: FailOn = Severity.HIGH,
    ignores: Annotated[Path | None, typer.Option("--ignores", help="TOML file of accepted findings.")] = None,
    baseline: Annotated[Path | None, typer.Option("--baseline", help="Compare with this earlier audit.")] = None,
    save_baseline: Annotated[Path | None, typer.Option("--save-baseline", help="Write the facts for later.")] = None,
    bundle: Annotated[Path | None, typer.Option("--bundle", help="Write everything into a zip file.")] = None,
    format: Annotated[Format, typer.Option("--format", help="How the result is written.")] = Format.TABLE,
    output: Annotated[Path | None, typer.Option("--output", help="Write there instead of to stdout.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="In the table: also what passes.")] = False,
    json: Json = False,
) -> None:
    """Judge a deployment by its logs, endpoints, manifests and configuration.

    Exit 1: a rule at or above --fail-on fails; 3: one could not tell; 0: none.
    """
    from kvfence.audit import examine
    from kvfence.audit.inputs import Numbers

    request = _request(sources, (prefill, decode, server), token_variable, advertised, single_tenant)
    numbers = Numbers(tuple(pool or ()), context, page_size, engine, engine_version)
    examined = examine.examine(examine.with_numbers(request, numbers, baseline))
    examined, notes = examine.accepted(examined, ignores)
    document = examine.document_of(examined, fail_on, notes)
    if save_baseline is not None:
        examine.save_baseline(save_baseline, examined)
    if bundle is not None:
        examine.save_bundle(bundle, examined)
    _write(document, Format.JSON if json else format, output, everything)
    raise typer.Exit(document.exit_code)


@app.command()
def facts(
    sources: Sources = None,
    prefill: Prefill = None,
    decode: Decode = None,
    server: Server = None,
    token_variable: Token = None,
    json: Json = False,
) -> None:
    """Show what the sources say, each value with where it was read; nothing is judged."""
    from kvfence.audit import examine
    from kvfence.audit.report.table import fact_rows
    from kvfence.evidence.document import facts_document

    request = _request(sources, (prefill, decode, server), token_variable, None, False)
    gathered = examine.gather_facts(request)
    if json:
        print_json(facts_document(gathered))
    else:
        print_table("", ("source", "fact", "value", "read at"), fact_rows(gathered), stderr=False)


@app.command()
def rules(json: Json = False) -> None:
    """List the rules."""
    from kvfence.audit.catalogue import catalogue
    from kvfence.audit.pages import engines_of

    rows = [(e.rule.id, e.rule.slug, str(e.rule.severity), engines_of(e.rule), e.title) for e in catalogue()]
    if json:
        names = ("id", "slug", "severity", "engines", "title", "since")
        found = [dict(zip(names, (*row, e.rule.since), strict=True)) for row, e in zip(rows, catalogue(), strict=True)]
        print_json(found)
    else:
        print_table("", ("id", "name", "severity", "engines", "what is wrong"), rows, stderr=False)


@app.command()
def explain(rule: Annotated[str, typer.Argument(metavar="ID", help="A rule's id or name.")]) -> None:
    """Show a rule: what it checks, why it matters, its evidence, how to fix it, references."""
    from kvfence.audit.catalogue import find
    from kvfence.audit.pages import rule_page

    sys.stdout.write(rule_page(find(rule)))


@app.command()
def alerts() -> None:
    """Write the rules that metrics can show as Prometheus alerts."""
    from kvfence.audit.alerts import to_rule_file
    from kvfence.audit.catalogue import catalogue

    sys.stdout.write(to_rule_file(catalogue()))


@app.command()
def watch(
    sources: Sources = None,
    prefill: Prefill = None,
    decode: Decode = None,
    server: Server = None,
    token_variable: Token = None,
    advertised: Advertised = None,
    single_tenant: SingleTenant = False,
    every: Annotated[float, typer.Option("--every", min=1.0, max=86_400.0, help="Seconds between two checks.")] = 60.0,
    times: Annotated[int, typer.Option("--times", min=1, max=WATCHES_MAX, help="Checks in all.")] = 1440,
    fail_on: FailOn = Severity.HIGH,
) -> None:
    """Check again and again, and write what has changed; exits like the worst check."""
    from kvfence.audit import examine
    from kvfence.audit.watching import changes, worst_code

    request = _request(sources, (prefill, decode, server), token_variable, advertised, single_tenant)
    codes: list[int] = []
    before: Examined | None = None
    for number in range(times):
        if number:
            time.sleep(every)
        now = examine.examine(request)
        codes.append(examine.document_of(now, fail_on, ()).exit_code)
        for line in changes(before.audit if before else None, now.audit):
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
        before = now
    raise typer.Exit(worst_code(codes))


@app.command()
def verify(
    bundle: Annotated[Path, typer.Argument(metavar="FILE.zip", help="A bundle that check wrote.")],
    sources: Annotated[list[Path] | None, typer.Argument(help="Its sources, to compare their digests.")] = None,
    json: Json = False,
) -> None:
    """Recompute a bundle's verdicts from its facts. Exit 1: they differ; 3: it cannot be told."""
    from kvfence.audit.bundle import verify as verify_bundle

    try:
        found = verify_bundle(bundle, sources or [])
    except EvidenceError as error:
        print_error(str(error))
        raise typer.Exit(ExitCode.COULD_NOT_TELL) from error
    if json:
        print_json(found)
    for line in found.differences:
        print_error(line)
    if found.changed_rules:
        print_note(f"rules of another version, not compared: {', '.join(found.changed_rules)}")
    if found.unchecked_sources:
        print_note(f"sources not compared: {', '.join(found.unchecked_sources)}")
    if found.differences:
        raise typer.Exit(ExitCode.FOUND)
    if found.changed_rules:
        raise typer.Exit(ExitCode.COULD_NOT_TELL)
    print_note("every verdict follows from the facts in the bundle")


def _request(
    sources: list[str] | None,
    by_role: tuple[list[str] | None, list[str] | None, list[str] | None],
    token_variable: str | None,
    advertised: int | None,
    single_tenant: bool,
) -> "Request":
    from kvfence.audit.deployment import Role, Stated
    from kvfence.audit.examine import Request
    from kvfence.audit.inputs import spec_of, specs_of_roles
    from kvfence.evidence.deployment import Spec

    plain = [spec_of(text) for text in sources or []]
    named = [Spec(each.source, each.role, token_variable) for each in plain]
    roles = dict(zip((Role.PREFILL, Role.DECODE, Role.SINGLE), (names or [] for names in by_role), strict=True))
    return Request((*named, *specs_of_roles(roles, token_variable)), Stated(advertised, single_tenant))


def _write(document: "Document", format: Format, output: Path | None, everything: bool) -> None:
    if format is Format.TABLE and output is None:
        from kvfence.audit.report.table import COLUMNS, rows, stacked, summary

        print_table("", COLUMNS, stacked(rows(document, everything)), stderr=False)
        for line in summary(document):
            sys.stdout.write(line + "\n")
        return
    text = _writer(format)(document)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, "utf-8")


def _writer(format: Format) -> Callable[["Document"], str]:
    """Give the writer of a format, importing no other."""
    if format is Format.SARIF:
        from kvfence.audit.report.sarif import to_sarif as write
    elif format is Format.JUNIT:
        from kvfence.audit.report.junit import to_junit as write
    elif format is Format.MARKDOWN:
        from kvfence.audit.report.markdown import to_markdown as write
    elif format is Format.HTML:
        from kvfence.audit.report.html import to_html as write
    elif format is Format.TABLE:
        from kvfence.audit.report.table import to_text as write
    else:
        from kvfence.audit.report.document import to_json_text as write
    return write
