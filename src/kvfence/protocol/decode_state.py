"""Decode's state, and the pages it grants, releases, quarantines and fences.

Owner: every page of the node's pool. A remotely written lot goes GRANTED -> SEALED -> ADOPTED, or is revoked into
quarantine; lots that decode writes itself stay GRANTED until they are released. Read ``transitions.py`` first,
``decode.py`` next.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.errors import LocalProtocolError
from kvfence.core.ids import FORMER_LIFE, AttemptId, Incarnation, PassId, SessionId
from kvfence.protocol.admission import Capacity
from kvfence.protocol.commands import Move, Send
from kvfence.protocol.guards import Rules
from kvfence.protocol.handoff import DecodeHandoff, advance
from kvfence.protocol.lots import (
    Lot,
    Pool,
    Quarantined,
    fence_lot,
    former_life_pool,
    free_pages,
    grant_lot,
    new_pool,
    quarantine_lot,
)
from kvfence.protocol.messages import Grant
from kvfence.protocol.node import Lives
from kvfence.protocol.transitions import DecodePhase, Fence, PageMove
from kvfence.protocol.turn import Turn


class DecodeNode(Struct, frozen=True):
    """Decode's whole protocol state: O(live attempts)."""

    lives: Lives
    capacity: Capacity
    layout: str
    fence: Fence
    pool: Pool
    offers_waiting_max: int = 256
    handoffs: dict[AttemptId, DecodeHandoff] = {}
    waiting: tuple[AttemptId, ...] = ()
    passes: dict[PassId, tuple[AttemptId, ...]] = {}
    last_pass: PassId = PassId(0)
    last_order: int = 0
    session: SessionId = SessionId("")
    sessions: frozenset[SessionId] = frozenset()


def start_decode(rules: Rules, node: DecodeNode) -> DecodeNode:
    """Give the node its first pool: every page quarantined until writers of a former life are fenced."""
    if node.fence is Fence.NONE:
        raise LocalProtocolError("this transport never proves that a revoked page is quiet; it is refused at start")
    num_pages = node.pool.num_pages
    if not rules.enforces("fence-on-start", "decode"):
        return replace(node, pool=new_pool(num_pages))
    writers = node.lives.writers | {FORMER_LIFE}
    return replace(node, pool=former_life_pool(num_pages, FORMER_LIFE), lives=replace(node.lives, writers=writers))


def put(node: DecodeNode, *handoffs: DecodeHandoff) -> DecodeNode:
    """Store hand-offs in one copy of the table; forget closed ones, tombstones too, that the floor has passed."""
    table = node.handoffs.copy()
    for handoff in handoffs:
        if handoff.phase is DecodePhase.CLOSED and node.lives.below_floor(handoff.attempt):
            table.pop(handoff.attempt, None)
        else:
            table[handoff.attempt] = handoff
    return replace(node, handoffs=table)


def hear(node: DecodeNode, attempt: AttemptId) -> DecodeNode:
    """Note that the gateway has heard the end."""
    handoff = node.handoffs.get(attempt)
    return node if handoff is None else put(node, replace(handoff, heard=True))


def grant_waiting(turn: Turn, node: DecodeNode) -> DecodeNode:
    """Grant pages(prompt) + 1, all or nothing, first come first served."""
    while node.waiting:
        handoff = node.handoffs[node.waiting[0]]
        num_pages = node.capacity.num_pages(handoff.num_tokens)
        if num_pages + 1 > node.pool.num_free:
            break
        pool, remote = grant_lot(node.pool, num_pages)
        pool, own = grant_lot(pool, 1)
        handoff = replace(advance(handoff, DecodePhase.GRANTED), remote=remote, own=(own,))
        node = replace(put(node, handoff), pool=pool, waiting=node.waiting[1:])
        turn.do(*(Move(PageMove.GRANT, lot.serial, lot.pages) for lot in (remote, own)))
        turn.do(Send(handoff.attempt.gateway, grant_message(node, handoff.attempt, remote)))
    return node


def grant_message(node: DecodeNode, attempt: AttemptId, lot: Lot) -> Grant:
    """What the gateway hears of a grant; the same each time."""
    return Grant(attempt, lot.serial, lot.pages, node.layout, node.session)


def release(turn: Turn, node: DecodeNode, lots: Iterable[Lot]) -> DecodeNode:
    """Free lots that nobody writes or reads any more."""
    pool = node.pool
    for lot in lots:
        if lot.pages:
            turn.do(Move(PageMove.RELEASE, lot.serial, lot.pages))
            pool = free_pages(pool, lot.pages)
    return replace(node, pool=pool)


def revoke(turn: Turn, node: DecodeNode, entry: Quarantined, *, mismatch: bool) -> DecodeNode:
    """Quarantine a lot whose writer may be active; after a mismatch that may be any writer.

    Where no writer is left, or the receiver checks every write as it lands, the fence follows at once.
    """
    if node.fence is Fence.AT_RECEIPT:
        entry = replace(entry, writers=frozenset())
    elif mismatch:
        entry = replace(entry, drains=False, writers=node.lives.writers)
    else:
        entry = replace(entry, writers=entry.writers & node.lives.writers)
    guard = "quarantine-on-mismatch" if mismatch else "quarantine-on-revoke"
    if turn.ask(guard, entry.attempt, holds=False):
        return release(turn, node, (entry.lot,))
    turn.do(Move(PageMove.REVOKE, entry.lot.serial, entry.lot.pages))
    node = replace(node, pool=quarantine_lot(node.pool, entry))
    return node if entry.writers else fence(turn, node, entry)


def fence(turn: Turn, node: DecodeNode, entry: Quarantined) -> DecodeNode:
    """Free a quarantined lot: its last write has ended. A hand-off that waited for that is closed."""
    turn.do(Move(PageMove.FENCE, entry.lot.serial, entry.lot.pages))
    node = replace(node, pool=fence_lot(node.pool, entry.lot.serial))
    handoff = node.handoffs.get(entry.attempt) if entry.attempt is not None else None
    if handoff is None or handoff.phase is not DecodePhase.REVOKED:
        return node
    return put(node, advance(handoff, DecodePhase.CLOSED))


def fence_writer(turn: Turn, node: DecodeNode, writer: Incarnation) -> DecodeNode:
    """A life writes no more: free the lots of which it was the last suspect."""
    for entry in tuple(node.pool.quarantined.values()):
        rest = replace(entry, writers=entry.writers - {writer})
        if writer in entry.writers and rest.writers:
            node = replace(node, pool=quarantine_lot(node.pool, rest))
        elif writer in entry.writers:
            node = fence(turn, node, entry)
    return node
