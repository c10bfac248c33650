"""The three processes as values: a node, and what its driver holds beside it while a pass runs.

All else that a driver knows of a sequence follows from its node, so it stands here as functions of the node.
Not for: what can happen next (``model.py``).
"""

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct

from kvfence.core.ids import AttemptId
from kvfence.core.invariant import require
from kvfence.core.pages import PageState
from kvfence.core.tags import PageTag
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.handoff import DecodeHandoff, PrefillHandoff
from kvfence.protocol.node_properties import held_lots
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.step import Node
from kvfence.protocol.transitions import DecodePhase, PrefillPhase
from kvfence.prove.pages import Tag

T = TypeVar("T")


class Chunk(NamedTuple):
    """One prompt in prefill's running pass. ``tags``: of its pages, shared ones first; ``bad``: wrong before it."""

    attempt: AttemptId
    tags: tuple[Tag, ...]
    num_shared: int
    num_tokens: int
    bad: tuple[int, ...]


class Row(NamedTuple):
    """One page of a sequence: the tag it must show, and the serial decode writes it under (0: never)."""

    page: int
    expected: Tag | None
    own_serial: int = 0


class Sequence(NamedTuple):
    """One sequence in decode's running pass.

    ``starts``: the new token is the first of its page. ``wrong``: what it read that is not its own, as (page, position,
    bytes).
    """

    attempt: AttemptId
    rows: tuple[Row, ...]
    starts: bool
    bad: tuple[int, ...]
    wrong: tuple[tuple[int, int, int], ...] = ()


class Gateway(NamedTuple):
    """The gateway's process."""

    node: GatewayNode


class Prefill(NamedTuple):
    """Prefill's process."""

    node: PrefillNode
    running: tuple[Chunk, ...] = ()


class Decode(NamedTuple):
    """Decode's process. ``read``: the running pass has read its pages."""

    node: DecodeNode
    running: tuple[Sequence, ...] = ()
    read: bool = False


Process = Gateway | Prefill | Decode


def with_node(process: Process, node: Node) -> Process:
    """Give a process whose node has moved on."""
    if isinstance(process, Gateway) and isinstance(node, GatewayNode):
        return Gateway(node)
    if isinstance(process, Prefill) and isinstance(node, PrefillNode):
        return process._replace(node=node)
    require(isinstance(process, Decode) and isinstance(node, DecodeNode), "a step keeps the kind of its node")
    return process._replace(node=node)  # type: ignore[arg-type]


class Table(Generic[T]):
    """Gives every value one small number, equal values the same; ``values`` has them in that order."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._ids: dict[Hashable, int] = {}

    def __getitem__(self, number: int) -> T:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)

    def id_of(self, value: T) -> int:
        """Number a value."""
        key = frozen(value)
        number = self._ids.get(key)
        if number is None:
            number = self._ids[key] = len(self.values)
            self.values.append(value)
        return number


def frozen(value: object) -> Hashable:
    """Give a hashable value that equals another's exactly if both are the same, in the same order."""
    try:
        hash(value)
    except TypeError:
        pass
    else:
        return value
    if isinstance(value, Struct):
        return (type(value).__name__, *(frozen(getattr(value, name)) for name in value.__struct_fields__))
    if isinstance(value, dict):
        return tuple((key, frozen(each)) for key, each in value.items())
    if isinstance(value, tuple):
        return tuple(frozen(each) for each in value)
    raise TypeError(f"{type(value).__name__} is no value")


# ---- prefill ------------------------------------------------------------------------------------------------------


def tags_of(node: PrefillNode, handoff: PrefillHandoff) -> tuple[Tag, ...]:
    """Give the tag of each page of a prompt, shared ones first."""
    return tuple((node.lives.incarnation, lot.serial, page) for lot in handoff.lots for page in lot.pages)


def prompts_ready(node: PrefillNode) -> list[PrefillHandoff]:
    """Give the prompts that wait for a pass."""
    return [h for h in node.handoffs.values() if h.phase is PrefillPhase.RUNNING and not h.passes and not h.computed]


# ---- decode -------------------------------------------------------------------------------------------------------


def sequences_ready(node: DecodeNode) -> list[DecodeHandoff]:
    """Give the sequences that wait for a pass."""
    handoffs = node.handoffs.values()
    return [h for h in handoffs if h.phase is DecodePhase.RUNNING and h.ending is None and not h.passes]


def num_kv(handoff: DecodeHandoff) -> int:
    """Tokens that lie in a sequence's pages; the last that was emitted does not yet."""
    return handoff.num_tokens + handoff.num_emitted - 1


def rows_of(node: DecodeNode, handoff: DecodeHandoff) -> tuple[Row, ...]:
    """Give the pages of a sequence in order: the full ones that prefill wrote, then decode's own.

    Where nothing was promised, the tag is one that nobody writes.
    """
    remote, manifest = handoff.remote, handoff.manifest
    if remote is None or manifest is None:
        return ()
    whole = handoff.num_tokens // node.capacity.page_size
    life = node.lives.incarnation
    unwritten = ((life, 0, page) for page in remote.pages)
    rows = [
        Row(page, origin(manifest.origin_tag(index)) or tag)
        for index, (page, tag) in enumerate(zip(remote.pages[:whole], unwritten, strict=False))
    ]
    rows += [Row(page, (life, lot.serial, page), lot.serial) for lot in handoff.own for page in lot.pages]
    return tuple(rows)


def origin(tag: PageTag | None) -> Tag | None:
    """Give a tag as a plain tuple."""
    return None if tag is None else (tag.incarnation, tag.serial, tag.page)


def page_states(node: Node) -> dict[int, tuple[PageState, int]]:
    """Give the state and serial of every page that is not free."""
    return {page: (state, serial) for state, serial, pages in held_lots(node) for page in pages}
