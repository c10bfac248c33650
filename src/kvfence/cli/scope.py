"""``kvfence scope``: who was affected, by what request logs say.

The machinery is imported inside the commands: the help needs none of it.
"""

import typer

from kvfence.cli.scope_account import account
from kvfence.cli.scope_synth import synth

app = typer.Typer(no_args_is_help=True)
app.command()(account)
app.command()(synth)


@app.callback()
def scope() -> None:
    """Which requests were answered from pages that nobody had written for them? From request logs; sends nothing."""
