"""README lists the supported and refused families as ``models/families.py`` has them.

``python tests/house/test_families.py`` writes the list anew.
"""

import textwrap
from itertools import groupby
from pathlib import Path

from kvfence.models.families import REFUSED, SUPPORTED

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- families -->\n", "<!-- /families -->"


def rendered() -> str:
    """The section between the two marks."""
    supported = "Supported: " + ", ".join(f"`{name}`" for name in sorted(SUPPORTED)) + "."
    by_reason = sorted(REFUSED.items(), key=lambda item: (item[1], item[0]))
    groups = groupby(by_reason, key=lambda item: item[1])
    refused = [f"{', '.join(f'`{name}`' for name, _ in group)} ({reason})" for reason, group in groups]
    incident = "The incident's own family, sparse attention with an indexer, is among the refused."
    paragraphs = [supported, "Refused: " + "; ".join(refused) + f". {incident}"]
    wrapped = ["\n".join(textwrap.wrap(p, 120, break_long_words=False, break_on_hyphens=False)) for p in paragraphs]
    return "\n\n".join(wrapped) + "\n"


def with_section(text: str) -> str:
    """README with its section written anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + rendered() + END + after


def test_readme_lists_the_families_as_they_are() -> None:
    """A family that is added or refused shows in README."""
    text = README.read_text()
    assert text == with_section(text), "stale: run python tests/house/test_families.py"


if __name__ == "__main__":
    README.write_text(with_section(README.read_text()))
