"""``kvfence model fetch``: the embedded model, fetched, verified and converted once into the cache."""

from typing import Annotated

import typer

from kvfence.cli.render import print_json, progress

app = typer.Typer(no_args_is_help=True)


@app.callback()
def model() -> None:
    """Fetch the embedded model."""


@app.command()
def fetch(json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False) -> None:
    """Fetch, verify and convert the embedded model; print the folder that holds it."""
    from kvfence.models.bundled import embedded_model

    with progress("embedded model") as report:
        path = embedded_model(report, full_check=True)
    if json:
        print_json({"path": str(path)})
    else:
        typer.echo(str(path))
