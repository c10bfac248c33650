"""What holds of every node, whatever happens around it; each docstring is the property's statement.

Read ``properties.py`` first.
"""

from itertools import chain

from kvfence.core.pages import PageState
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.step import Node
from kvfence.protocol.transitions import DecodePhase, PrefillPhase

HeldLot = tuple[PageState, int, tuple[int, ...]]
"""The state, serial and pages of a lot that is not free."""


def held_lots(node: Node) -> list[HeldLot]:
    """Give every lot that is not free as the ledger should show it."""
    if isinstance(node, GatewayNode):
        return []
    lots = [(PageState.QUARANTINED, q.lot.serial, q.lot.pages) for q in node.pool.quarantined.values()]
    if isinstance(node, PrefillNode):
        own = {h.lot.serial: h.num_sealed - h.num_shared for h in node.handoffs.values() if h.lot is not None}
        for serial, entry in node.pool.held.items():
            pages = entry.lot.pages
            num_sealed = own.get(serial, len(pages))
            lots += [(PageState.SEALED, serial, pages[:num_sealed]), (PageState.GRANTED, serial, pages[num_sealed:])]
        return lots
    for held in node.handoffs.values():
        if held.phase in _HOLDING and held.remote is not None:
            state = PageState.ADOPTED if held.phase is DecodePhase.RUNNING else PageState.GRANTED
            lots.append((state, held.remote.serial, held.remote.pages))
            lots += [(PageState.GRANTED, lot.serial, lot.pages) for lot in held.own]
    return lots


_HOLDING = (DecodePhase.GRANTED, DecodePhase.VERIFYING, DecodePhase.RUNNING)


def accounting(node: Node) -> bool:
    """Free, held and quarantined pages are the pool; no page is in two lots."""
    if isinstance(node, GatewayNode):
        return True
    pages = [*chain.from_iterable(lot[2] for lot in held_lots(node)), *chain.from_iterable(node.pool.free)]
    free = sum(map(len, node.pool.free))
    return free == node.pool.num_free and len(pages) == node.pool.num_pages and len(set(pages)) == len(pages)


def waiting_wait(node: Node) -> bool:
    """Who waits for pages is in the queue, once, and nobody else is."""
    if isinstance(node, GatewayNode):
        return True
    phase = DecodePhase.WAITING if isinstance(node, DecodeNode) else PrefillPhase.WAITING
    return sorted(node.waiting) == sorted(a for a, h in node.handoffs.items() if h.phase is phase)


def batches_bounded(node: Node) -> bool:
    """An attempt has at most batch_pages_max writes outstanding."""
    if not isinstance(node, PrefillNode):
        return True
    return all(sum(n for _, n in h.batches) <= node.batch_pages_max for h in node.handoffs.values())


def work_holds_pages(node: Node) -> bool:
    """No page is free while a pass or a posted write uses it."""
    if isinstance(node, PrefillNode):
        return all(h.lot is not None for h in node.handoffs.values() if h.batches or h.passes)
    if isinstance(node, DecodeNode):
        at_work = (h for attempts in node.passes.values() for a in attempts for h in (node.handoffs.get(a),))
        return all(h is not None and h.phase is DecodePhase.RUNNING for h in at_work)
    return True


def holders_agree(node: Node) -> bool:
    """A lot's holders are the attempts that say they hold it, each as many of its first pages as they say."""
    if not isinstance(node, PrefillNode):
        return True
    said = {(h.attempt, lot.serial): lot.pages for h in node.handoffs.values() for lot in h.lots}
    known = {(a, s): e.lot.pages[:n] for s, e in node.pool.held.items() for a, n in e.holders.items()}
    return said == known


def holders_share_a_salt(node: Node) -> bool:
    """All who hold a page have one salt, the one it was written for."""
    if not isinstance(node, PrefillNode):
        return True
    held = ((entry, a) for entry in node.pool.held.values() for a in entry.holders)
    return all(entry.salt == node.handoffs[a].salt for entry, a in held if a in node.handoffs)


def cached_is_verified(node: Node) -> bool:
    """A page that nobody holds was carried by a hand-off that was committed; ``num_cached`` counts such pages."""
    if not isinstance(node, PrefillNode):
        return True
    entries = node.pool.held.values()
    counted = node.pool.num_cached == sum(entry.num_cached for entry in entries)
    return counted and all(entry.verified and entry.salt for entry in entries if not entry.holders)


def cache_is_bounded(node: Node) -> bool:
    """At most ``cached_lots_max`` lots are held by nobody; ``num_idle`` counts them."""
    if not isinstance(node, PrefillNode):
        return True
    return node.pool.num_idle == sum(e.is_idle for e in node.pool.held.values()) <= node.cached_lots_max


def cache_makes_room(node: Node) -> bool:
    """Nobody waits for pages that are only cached."""
    if not isinstance(node, PrefillNode) or not node.waiting:
        return True
    num_pages = node.capacity.num_pages(node.handoffs[node.waiting[0]].num_tokens)
    return num_pages > node.pool.num_free + node.pool.num_cached


def revoked_is_quarantined(node: Node) -> bool:
    """A given-up hand-off's pages are quarantined."""
    if not isinstance(node, DecodeNode):
        return True
    revoked = [h.remote for h in node.handoffs.values() if h.phase is DecodePhase.REVOKED]
    return all(lot is not None and lot.serial in node.pool.quarantined for lot in revoked)


def one_attempt_feeds(node: Node) -> bool:
    """One attempt at a time feeds a request."""
    if not isinstance(node, GatewayNode):
        return True
    open_now = list(node.current.values())
    return len(set(open_now)) == len(open_now) and all(a in node.handoffs for a in open_now)


def over_is_forgotten(node: Node) -> bool:
    """What is closed and below the floor is forgotten, unless a repeated Abort must still hear *unknown*."""
    if isinstance(node, DecodeNode):
        return not any(h.phase is DecodePhase.CLOSED and node.lives.below_floor(a) for a, h in node.handoffs.items())
    if isinstance(node, PrefillNode):
        closed = [h for h in node.handoffs.values() if h.phase is PrefillPhase.CLOSED and h.lot is None]
        return all(h.answer or h.unknown or not node.lives.below_floor(h.attempt) for h in closed)
    return True


def at_rest(node: Node) -> bool:
    """Every hand-off is over; nobody waits and no pass runs."""
    if isinstance(node, GatewayNode):
        return not node.handoffs and not node.current
    closed = DecodePhase.CLOSED if isinstance(node, DecodeNode) else PrefillPhase.CLOSED
    return not node.waiting and not node.passes and all(h.phase is closed for h in node.handoffs.values())


def answered(node: Node) -> bool:
    """Nobody waits for an answer from this node."""
    if isinstance(node, DecodeNode):
        return all(h.heard for h in node.handoffs.values() if h.ending is not None)
    return not isinstance(node, PrefillNode) or not any(h.answer for h in node.handoffs.values())


def all_free(node: Node) -> bool:
    """Every page is free again, or cached and held by nobody."""
    return isinstance(node, GatewayNode) or node.pool.num_free + node.pool.num_cached == node.pool.num_pages
