"""``kvfence scope``: who was affected, by what request logs say.

The machinery is imported inside the commands: the help needs none of it.
"""

import typer

from kvfence.cli import scope_account, scope_synth

app = typer.Typer(no_args_is_help=True)
app.registered_commands += scope_account.app.registered_commands + scope_synth.app.registered_commands


@app.callback()
def scope() -> None:
    """Which requests were answered from pages that nobody had written for them? From request logs; sends nothing."""
