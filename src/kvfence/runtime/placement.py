"""What the gateway knows of the workers when it places an attempt.

The pages that its own open attempts take are counted here and now, not awaited from a heartbeat; quarantined pages
are those that the last heartbeat told. Not for: the choice itself (``protocol/routing.py``).
"""

from collections.abc import Iterable

from msgspec import Struct

from kvfence.core.ids import Incarnation
from kvfence.protocol.admission import Capacity
from kvfence.protocol.handoff import GatewayHandoff
from kvfence.protocol.routing import Need, Placement, WorkerLoad, place
from kvfence.protocol.transitions import GatewayPhase

AT_PREFILL = (GatewayPhase.OFFERED, GatewayPhase.DISPATCHED)


class Peer(Struct):
    """One introduced worker. ``healthy``: it is heard, so that attempts may be placed on it.

    Units: num_pages of its pool; quarantined_pages as last heard.
    """

    incarnation: Incarnation
    role: str
    num_pages: int
    quarantined_pages: int = 0
    healthy: bool = True


def place_on(
    peers: Iterable[Peer], handoffs: Iterable[GatewayHandoff], capacity: Capacity, num_tokens: int
) -> Placement | None:
    """Choose the workers of an attempt with so many prompt tokens; None where a role has no healthy worker."""
    open_now = tuple(handoffs)
    loads: dict[str, list[WorkerLoad]] = {"prefill": [], "decode": []}
    for peer in peers:
        load = _at_prefill if peer.role == "prefill" else _at_decode
        loads[peer.role].append(load(peer, open_now, capacity))
    num_pages = capacity.num_pages(num_tokens)
    return place(tuple(loads["prefill"]), tuple(loads["decode"]), Need(num_pages, num_pages + 1))


def _at_prefill(peer: Peer, handoffs: tuple[GatewayHandoff, ...], capacity: Capacity) -> WorkerLoad:
    """A prompt's pages are prefill's until it has been handed over."""
    here = [h for h in handoffs if h.prefill == peer.incarnation and h.phase in AT_PREFILL]
    promised = sum(capacity.num_pages(h.num_tokens) for h in here)
    return _load(peer, promised, sum(h.num_tokens for h in here), len(here))


def _at_decode(peer: Peer, handoffs: tuple[GatewayHandoff, ...], capacity: Capacity) -> WorkerLoad:
    """A sequence's pages, those it has grown by and one more are decode's until its end."""
    here = [h for h in handoffs if h.decode == peer.incarnation]
    promised = sum(capacity.num_pages(h.num_tokens + h.num_emitted) + 1 for h in here)
    queued = sum(h.num_tokens for h in here if h.phase is GatewayPhase.OFFERED)
    return _load(peer, promised, queued, len(here))


def _load(peer: Peer, promised_pages: int, queued_tokens: int, num_open: int) -> WorkerLoad:
    free_pages = peer.num_pages - peer.quarantined_pages - promised_pages
    return WorkerLoad(peer.incarnation, free_pages, queued_tokens, num_open, peer.healthy)
