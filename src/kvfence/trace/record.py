"""The lines of a trace. The first is a header, all others are steps.

Every line is one JSON object with ``type``. Schema changes raise ``SCHEMA``.
"""

from msgspec import Struct

from kvfence.protocol.commands import Command
from kvfence.protocol.events import Event
from kvfence.protocol.guards import Decision
from kvfence.protocol.step import Node

SCHEMA = 2


class TraceHeader(Struct, frozen=True, tag_field="type", tag="header", omit_defaults=True):
    """Whose trace this is and from which state it starts.

    ``absent``: guards that were asked but not obeyed; ``observed``: likewise, by an operator's wish.
    """

    schema: int
    role: str
    incarnation: str
    absent: tuple[str, ...]
    node: dict[str, object]
    observed: tuple[str, ...] = ()


class TraceStep(Struct, frozen=True, tag_field="type", tag="step"):
    """One step. Units: at_ns on the driver's own clock, comparable within one trace only."""

    n: int
    at_ns: int
    event: Event
    commands: tuple[Command, ...]
    decisions: tuple[Decision, ...]


TraceLine = TraceHeader | TraceStep


def summary_of(node: Node) -> dict[str, object]:
    """Give what of a fresh node a reader needs: sizes and lives, not its (empty) tables."""
    summary: dict[str, object] = {
        "incarnation": node.lives.incarnation,
        "page_size": node.capacity.page_size,
        "context_tokens": node.capacity.context_tokens,
        "prefill_pages": node.capacity.prefill_pages,
        "decode_pages": node.capacity.decode_pages,
    }
    fence = getattr(node, "fence", None)
    if fence is not None:
        summary["fence"] = fence.value
    layout = getattr(node, "layout", None)
    if layout is not None:
        summary["layout"] = layout
    return summary
