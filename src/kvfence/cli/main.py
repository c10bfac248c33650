"""``kvfence``: finds the verb, loads its module alone, and turns every error into an exit code.

A verb's module stands in this package under the verb's name and offers ``app: typer.Typer``: one command, or a
callback with commands below it. It imports its own machinery inside functions, so that ``--help`` of every verb works
in a light install. A verb ends with ``raise typer.Exit(ExitCode....)`` or by returning, which is 0.

Read next: ``exits.py``, then the module of a verb.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from msgspec import Struct

from kvfence import __version__
from kvfence.cli.exits import missing_extra, report
from kvfence.core.invariant import InvariantBroken


class Verb(Struct, frozen=True):
    """One thing kvfence does. ``extra``: what must be installed for all of it; empty: the light install does."""

    name: str
    summary: str
    extra: str = ""


VERBS = (
    Verb("serve", "Run the server: prefill and decode workers on this host, every KV page fenced.", "serve"),
    Verb("incident", "Replay the incident and show what the guards change.", "serve"),
    Verb("range", "Run a practice server that leaks in a known way, on loopback.", "serve"),
    Verb("audit", "Can this deployment leak? From its logs, endpoints and manifests."),
    Verb("scope", "Who was affected? From request logs.", "scope"),
    Verb("prove", "Can the protocol leak? Searched, proved, simulated; live traces checked."),
    Verb("guard", "Look at the fence inside other engines: is it on, can this release have it?"),
    Verb("probe", "Does this endpoint leak? Canaries through the front door.", "probe"),
    Verb("model", "Fetch the embedded model.", "serve"),
    Verb("config", "Show each setting and where its value comes from."),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process with a code of ``ExitCode``."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    verb = next((verb for verb in VERBS if [verb.name] == given[:1]), Verb("", ""))
    try:
        build_app(given)(args=given, prog_name="kvfence")
    except ModuleNotFoundError as error:
        ours = (error.name or "kvfence").partition(".")[0] == "kvfence"
        sys.exit(report(error) if ours or not verb.extra else missing_extra(verb.name, verb.extra, error))
    except (Exception, InvariantBroken) as error:  # noqa: BLE001  the last frame: nothing may leave without a code
        sys.exit(report(error))


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """Make the application in which only the verb named in the arguments is loaded; the others are one line of help."""
    app = typer.Typer(
        name="kvfence", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, callback=_root
    )
    for verb in VERBS:
        if [verb.name] == list(arguments[:1]) and (loaded := _load(verb, arguments)):
            _attach(app, verb, loaded)
        else:
            app.command(verb.name, help=_stub_help(verb))(_not_loaded)
    return app


def _load(verb: Verb, arguments: Sequence[str]) -> typer.Typer | None:
    """Import a verb's module; None where only its help is asked for and its extra is missing."""
    try:
        module = importlib.import_module(f"kvfence.cli.{verb.name}")
    except ModuleNotFoundError as error:
        if "--help" in arguments and not (error.name or "").startswith("kvfence"):
            return None
        raise
    loaded: typer.Typer = module.app
    return loaded


def _attach(app: typer.Typer, verb: Verb, loaded: typer.Typer) -> None:
    commands = loaded.registered_commands
    for command in commands:
        command.help = _flowing(command.help or inspect.getdoc(command.callback) or "")
    if len(commands) == 1 and loaded.registered_callback is None:
        commands[0].name = verb.name
        app.registered_commands.append(commands[0])
    else:
        app.add_typer(loaded, name=verb.name, help=verb.summary)


def _flowing(text: str) -> str:
    """Let the terminal break a paragraph's lines: a docstring's own breaks are for its reader in the source."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)


def _stub_help(verb: Verb) -> str:
    return f"{verb.summary} (extra: {verb.extra})" if verb.extra else verb.summary


def _not_loaded() -> None:
    """Stand for a verb that was not asked for."""


def _print_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"kvfence {__version__}\n")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Keep one tenant's KV cache out of another tenant's answer."""
