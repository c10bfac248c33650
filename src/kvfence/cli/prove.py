"""``kvfence prove``: evidence over the one ``step`` that the server runs.

Each subcommand stands in a module of its own, ``prove_NAME.py``, that offers ``app: typer.Typer`` with one command; it
imports its machinery inside that command, so that the help of all of them needs none of it.
"""

import importlib
import importlib.util

import typer

app = typer.Typer(no_args_is_help=True)

COMMANDS = ("explore", "matrix", "invariant", "sim", "replay")
"""In the order in which the help lists them; one whose module is not there is not listed."""


@app.callback()
def prove() -> None:
    """Can the protocol leak? Searched, proved, simulated, and live traces checked against it."""


for _name in COMMANDS:
    if importlib.util.find_spec(f"kvfence.cli.prove_{_name}") is not None:
        _commands = importlib.import_module(f"kvfence.cli.prove_{_name}").app.registered_commands
        for _command in _commands:
            _command.name = _name
        app.registered_commands += _commands
