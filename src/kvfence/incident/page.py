"""The incident as one self-contained page: no script, no font, no image from anywhere else.

Every text goes through autoescape; answers of a model are hostile until shown otherwise.
"""

import re
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from kvfence.incident.findings import SeedFindings
from kvfence.incident.story import NOBODY, PLACEHOLDER_OWNER, Sample

HUES = (208, 28, 268, 152, 340, 48, 186, 96, 310, 232)
"""One for each tenant, in the order in which they appear."""


def render_page(found: Sequence[SeedFindings], report: dict[str, Any]) -> str:
    """Give the page as HTML."""
    environment = Environment(
        loader=PackageLoader("kvfence.incident", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    sample = found[0].sample
    return environment.get_template("page.html.j2").render(
        found=found,
        report=report,
        sample=sample,
        hues=_hues(sample),
        words=lambda statuses: ", ".join(f"{count} × {status}" for status, count in statuses.items()),
        mark=mark,
        nobody=NOBODY,
        ours=PLACEHOLDER_OWNER,
    )


def _hues(sample: Sample | None) -> dict[str, int]:
    """Give each owner's colour; an answer has its tenant's."""
    hues: dict[str, int] = {}
    for row in sample.pages if sample is not None else ():
        for owner in (row.before, row.after):
            tenant = owner.removesuffix(", answer")
            if tenant not in (NOBODY, PLACEHOLDER_OWNER) and tenant not in hues:
                hues[tenant] = HUES[len(hues) % len(HUES)]
    return hues


def mark(text: str, markers: Sequence[str]) -> Markup:
    """Escape a text and set its markers off."""
    if not markers:
        return escape(text)
    pattern = "|".join(re.escape(str(marker)) for marker in markers)
    parts = re.split(f"({pattern})", text, flags=re.IGNORECASE)
    marked = (Markup("<mark>{}</mark>").format(part) if index % 2 else escape(part) for index, part in enumerate(parts))
    return Markup("").join(marked)
