"""Options that several verbs have, each worded once, and the question that some of them end in."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from kvfence.core.errors import SettingsError

SEED_MAX = (1 << 63) - 1
"""A larger number stands in no JSON document."""

Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as JSON there.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as a page.")]
Authorities = Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate authorities, PEM.")]


def agrees() -> bool:
    """Ask on a terminal whether to send; whoever leaves the question has not agreed."""
    try:
        return typer.confirm("Send it?", err=True)
    except typer.Abort:
        return False


def require_finite(numbers: Mapping[str, float | None]) -> None:
    """Refuse, by option, what is no finite number: no clock waits so long, and no JSON document holds it.

    Raises:
        SettingsError: names every one of them.
    """
    wrong = [f"{option}: name a finite number" for option, number in numbers.items() if not math.isfinite(number or 0)]
    if wrong:
        raise SettingsError(wrong)
