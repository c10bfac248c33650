"""``kvfence scope``: who was affected, by what request logs say.

The machinery is imported inside the commands: the help needs none of it.
"""

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def scope() -> None:
    """Which requests were answered from pages that nobody had written for them? From request logs; sends nothing."""
