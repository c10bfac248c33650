"""The lines of a trace. The first is a header, the last an end, all between them are steps.

Every line is one JSON object with ``type``; its last field, ``sum``, is a CRC-32 over all lines of its file up to and
with this one (``sealed_line``), so that a line that was edited, moved or cut out shows. It stops accidents and
carelessness, not whoever makes the sums anew. Schema changes raise ``SCHEMA``.
"""

from zlib import crc32

from msgspec import Struct

from kvfence.core.errors import TraceError
from kvfence.core.ids import Incarnation
from kvfence.protocol.admission import Capacity
from kvfence.protocol.commands import Command
from kvfence.protocol.decode_state import DecodeNode, start_decode
from kvfence.protocol.events import Event
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import ASKED, Decision, Rules
from kvfence.protocol.lots import new_pool
from kvfence.protocol.node import Lives
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.step import Node
from kvfence.protocol.transitions import Fence
from kvfence.protocol.watched import Watched

SCHEMA = 4

POOL_PAGES_MAX = 1 << 24
"""No pool that a header tells of is larger: 16 million pages take a gigabyte to replay."""

_SUM = b',"sum":'


class NodeStart(Struct, frozen=True, omit_defaults=True):
    """What a fresh node is made of; its tables are empty. ``pool_pages``: of its own pool; 0 at a gateway.

    ``fence``, ``offers_waiting_max`` belong to decode; ``batch_pages_max``, ``cached_lots_max`` to prefill.
    """

    capacity: Capacity
    pool_pages: int = 0
    layout: str = ""
    fence: Fence | None = None
    offers_waiting_max: int = 0
    batch_pages_max: int = 0
    cached_lots_max: int = 0


class TraceHeader(Struct, frozen=True, tag_field="type", tag="header", omit_defaults=True):
    """Whose trace this is and from which state it starts.

    ``absent``: guards that were asked but not obeyed; ``observed``: likewise, by an operator's wish.
    ``engine``: of a plug-in's trace, what it is in; ``unseen``: what it does not see there (``watched.SIGHTS``).
    """

    schema: int
    role: str
    incarnation: str
    absent: tuple[str, ...]
    node: NodeStart
    observed: tuple[str, ...] = ()
    engine: str = ""
    unseen: tuple[str, ...] = ()


class TraceStep(Struct, frozen=True, tag_field="type", tag="step"):
    """One step. Units: at_ns on the driver's own clock, comparable within one trace only."""

    n: int
    at_ns: int
    event: Event | Watched
    commands: tuple[Command, ...]
    decisions: tuple[Decision, ...]


class TraceEnd(Struct, frozen=True, tag_field="type", tag="end"):
    """The recorder closed the trace after step ``n``; without it nobody knows what came after the last line."""

    n: int


TraceLine = TraceHeader | TraceStep | TraceEnd


def sealed_line(body: bytes, before: int) -> tuple[bytes, int]:
    """Give an encoded object as a line of a trace, and the sum up to it; ``before``: the sum up to the line before."""
    total = crc32(body, before)
    return body[:-1] + b"%s%d}\n" % (_SUM, total), total


def unsealed(line: bytes, before: int) -> tuple[bytes, int] | None:
    """Give a line's object and the sum up to it; None where the line is not as it was written."""
    cut = line.rfind(_SUM)
    body, claimed = line[:cut] + b"}", line[cut + len(_SUM) : -2]
    total = crc32(body, before)
    return (body, total) if cut > 0 and line.endswith(b"}\n") and claimed == b"%d" % total else None


def start_of(node: Node) -> NodeStart:
    """Give what a fresh node was made of."""
    if isinstance(node, GatewayNode):
        return NodeStart(node.capacity)
    if isinstance(node, DecodeNode):
        pages, offers = node.pool.num_pages, node.offers_waiting_max
        return NodeStart(node.capacity, pages, node.layout, node.fence, offers_waiting_max=offers)
    return NodeStart(
        node.capacity,
        node.pool.num_pages,
        node.layout,
        batch_pages_max=node.batch_pages_max,
        cached_lots_max=node.cached_lots_max,
    )


def begun(header: TraceHeader) -> tuple[Rules, Node]:
    """Give the rules and the fresh node that a header tells of: ``start_of`` read backwards.

    Raises:
        TraceError: a guard, role or transport that this build does not know; a pool that nobody has.
    """
    if not 0 <= header.node.pool_pages <= POOL_PAGES_MAX:
        raise TraceError(f"its pool has {header.node.pool_pages} pages; at most {POOL_PAGES_MAX} can be replayed")
    foreign = {*header.absent, *header.observed} - ASKED
    if foreign:
        raise TraceError(f"its rules name guards that this build does not have: {', '.join(sorted(foreign))}")
    rules = Rules(frozenset(header.absent), frozenset(header.observed))
    lives, start = Lives(Incarnation(header.incarnation)), header.node
    if header.role == "gateway":
        return rules, GatewayNode(lives, start.capacity)
    if header.role == "prefill":
        pool, batch, lots = new_pool(start.pool_pages), start.batch_pages_max, start.cached_lots_max
        return rules, PrefillNode(lives, start.capacity, start.layout, pool, batch, lots)
    if header.role != "decode" or start.fence in (None, Fence.NONE):
        raise TraceError(f"a {header.role} node with the fence {start.fence} cannot be begun")
    pool = new_pool(start.pool_pages)
    node = DecodeNode(lives, start.capacity, start.layout, start.fence, pool, start.offers_waiting_max)
    return rules, start_decode(rules, node)
