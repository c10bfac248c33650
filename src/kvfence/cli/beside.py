"""Refuses options that another one would leave without effect."""

from collections.abc import Collection

import typer

from kvfence.core.errors import SettingsError


def refuse_beside(context: typer.Context, option: str, allowed: Collection[str]) -> None:
    """Refuse every option that was given and does not go with this one. ``allowed``: parameters, by name.

    Raises:
        SettingsError: one for each.
    """
    params = [each for each in context.command.params if each.name not in allowed]
    wrong = [each.opts[0] for each in params if _was_given(context, str(each.name))]
    if wrong:
        raise SettingsError([f"{name} does not go with {option}: leave it out" for name in wrong])


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
