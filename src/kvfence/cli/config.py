"""``kvfence config show``: each setting, its value, and where the value comes from."""

import os
from typing import Annotated

import typer
from msgspec import Struct

from kvfence.cli.load_settings import load_settings, setting_fields
from kvfence.cli.render import print_json, print_table
from kvfence.cli.settings_flags import Flags, with_settings_flags

app = typer.Typer(no_args_is_help=True)


class ShownSetting(Struct, frozen=True):
    """One setting as ``--json`` gives it."""

    key: str
    value: object
    source: str
    description: str


@app.callback()
def config() -> None:
    """Show each setting and where its value comes from."""


@app.command()
@with_settings_flags
def show(
    flags: Flags, json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False
) -> None:
    """Print each setting with its value and its source: default, file, environment or flag."""
    loaded = load_settings(flags.config, os.environ, flags.given)
    fields = setting_fields()
    if json:
        print_json([ShownSetting(*row, fields[row[0]].description) for row in loaded.rows()])
    else:
        rows = [(key, _shown(value), source, fields[key].description) for key, value, source in loaded.rows()]
        print_table("", ("setting", "value", "source", "meaning"), rows, stderr=False)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return str(value) if value != "" else '""'
