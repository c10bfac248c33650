"""Searches and the matrix as one self-contained page that a person steps through with the keyboard."""

from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import Struct

from kvfence.prove.matrix import Matrix, MistakeRow, Tried
from kvfence.prove.story import Moment, Story


class TableShown(Struct, frozen=True):
    """One table of the page."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Shown(Struct, frozen=True):
    """One story of the page."""

    title: str
    statement: str
    moments: tuple[Moment, ...]


def story_page(title: str, subtitle: str, stories: Sequence[Story]) -> str:
    """Give the page of a search."""
    shown = [Shown(story.property, story.statement, story.moments) for story in stories]
    return _render(title=title, subtitle=subtitle, tables=[], stories=shown)


def matrix_page(found: Matrix) -> str:
    """Give the page of the matrix."""
    shown = [Shown(f"without {row.guard}", row.fault, row.trace) for row in found.guards if row.trace]
    shown += [Shown(f"{row.id}: {row.error}", row.source, row.trace) for row in found.mistakes if row.trace]
    return _render(
        title="Every guard taken away, and put back",
        subtitle="Searched over the very step that the server runs, in the smallest world in which each fault harms.",
        tables=tables(found),
        stories=shown,
    )


def tables(found: Matrix) -> list[TableShown]:
    """Give the matrix as tables."""
    guards = tuple(
        (
            row.guard,
            row.fault,
            ", ".join(row.alone) or "-",
            _words(row.without_it),
            _words(row.with_it),
            _words(row.removed),
            f"redundant under: {', '.join(row.redundant_under)}" if row.redundant_under else "-",
        )
        for row in found.guards
    )
    columns = ("guard", "fault", "away with it", "without it", "with it", "removed, all others on", "")
    made = [TableShown("Guards", columns, guards)]
    if found.hazards:
        hazards = tuple(
            (h.hazard, "; or ".join(" + ".join(enough) for enough in h.sufficient) or "none", str(h.unknown))
            for h in found.hazards
        )
        heads = ("hazard", "enough", "sets left UNKNOWN")
        made.append(TableShown("Smallest sets that suffice against a leak", heads, hazards))
    if found.mistakes:
        known = tuple((m.id, m.error, _refuted(m), ", ".join(m.answers), _why(m)) for m in found.mistakes)
        made.append(TableShown("Known mistakes of the field", ("", "mistake", "refuted", "answered by", ""), known))
    return made


def _refuted(mistake: MistakeRow) -> str:
    if mistake.inexpressible:
        return "not expressible"
    return "yes" if mistake.refuted else "UNKNOWN" if mistake.undecided else "NO"


def _why(mistake: Any) -> str:
    if not mistake.inexpressible:
        return str(mistake.source)
    return f"{mistake.inexpressible}. Covered by: {mistake.elsewhere}"


def _words(tried: Tried) -> str:
    return f"{tried.property} ({tried.states:,})" if tried.property else f"{tried.verdict} ({tried.states:,})"


def _render(**values: object) -> str:
    environment = Environment(
        loader=PackageLoader("kvfence.prove", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html.j2").render(**values)
