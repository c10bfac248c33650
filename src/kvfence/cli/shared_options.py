"""Options that several verbs have, each worded once."""

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as JSON there.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as a page.")]
Authorities = Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate authorities, PEM.")]
