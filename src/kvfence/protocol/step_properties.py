"""What holds of every step, and what some step must reach; each docstring is the property's statement.

Read ``properties.py`` first.
"""

from collections.abc import Callable
from itertools import pairwise

from msgspec import Struct

from kvfence.protocol.commands import Deliver, Emit, Finish, Move, Send, StartPrefill
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import (
    ClientGone,
    DeadlinePassed,
    Event,
    PassEnded,
    PeerGone,
    PeerSilent,
    Received,
    SessionRebuilt,
    TokensArrived,
    Verified,
)
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.messages import Cancel, Drained, EndReason, Failed
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.step import Node, Step
from kvfence.protocol.transitions import DecodePhase, Fence, GatewayPhase, PageMove, PrefillPhase


class Taken(Struct, frozen=True):
    """One step taken."""

    before: Node
    event: Event
    step: Step


def serials_grow(taken: Taken) -> bool:
    """A grant's serial exceeds every one before it."""
    before, after = taken.before, taken.step.node
    if isinstance(before, GatewayNode) or isinstance(after, GatewayNode):
        return True
    granted = [c.serial for c in moves(taken, PageMove.GRANT)]
    rising = all(a < b for a, b in pairwise(granted))
    return rising and all(before.pool.next_serial <= s < after.pool.next_serial for s in granted)


def moves(taken: Taken, move: PageMove) -> list[Move]:
    """Give a step's page moves of one kind."""
    return [c for c in taken.step.commands if isinstance(c, Move) and c.move is move]


def floors_grow(taken: Taken) -> bool:
    """A floor never moves down."""
    floors = taken.step.node.lives.floors
    return all(floors.get(gateway, 0) >= counter for gateway, counter in taken.before.lives.floors.items())


def waiting_is_fifo(taken: Taken) -> bool:
    """Pages go to whoever has waited longest."""
    before, after = taken.before, taken.step.node
    if isinstance(before, GatewayNode) or isinstance(after, GatewayNode):
        return True
    served = {a for a in before.waiting if getattr(after.handoffs.get(a), "phase", None) in _SERVED}
    first_left = next((i for i, a in enumerate(before.waiting) if a in after.waiting), len(before.waiting))
    return served <= set(before.waiting[:first_left])


_SERVED = (DecodePhase.GRANTED, PrefillPhase.RUNNING)


def adopted_is_verified(taken: Taken) -> bool:
    """Pages are adopted only after their bytes were verified."""
    if not moves(taken, PageMove.ADOPT):
        return True
    event = taken.event
    return isinstance(event, Verified) and not event.bad_stamps and event.digests_match


def emitted_is_clean(taken: Taken) -> bool:
    """A token leaves only when every page of its pass matched."""
    out = {a for c in taken.step.commands if isinstance(c, Emit) for a in c.attempts}
    if isinstance(taken.event, PassEnded):
        return out.isdisjoint(a for a, pages in taken.event.bad if pages)
    return not out or isinstance(taken.event, Verified)


def fence_has_proof(taken: Taken) -> bool:
    """Quarantine ends by *drained* or this transport's fence."""
    before = taken.before
    fenced = moves(taken, PageMove.FENCE)
    if not fenced or not isinstance(before, DecodeNode):
        return not fenced or isinstance(taken.event, SessionRebuilt)
    match taken.event:
        case Received(envelope=envelope) if isinstance(envelope.message, Drained):
            return True
        case PeerGone(reaped=True) if before.fence is not Fence.NEW_SESSION:
            return True
        case SessionRebuilt() if before.fence is Fence.NEW_SESSION:
            return True
    return _nobody_writes(before)


def _nobody_writes(node: DecodeNode) -> bool:
    return node.fence is Fence.AT_RECEIPT or not node.lives.writers


def no_timer_frees(taken: Taken) -> bool:
    """No page a peer may write is freed by a timer."""
    if not isinstance(taken.event, DeadlinePassed) or not isinstance(taken.before, DecodeNode):
        return True
    handoff = taken.before.handoffs.get(taken.event.attempt)
    if handoff is None or handoff.remote is None or handoff.phase is DecodePhase.RUNNING:
        return True
    freed = [*moves(taken, PageMove.RELEASE), *moves(taken, PageMove.FENCE)]
    return _nobody_writes(taken.before) or all(move.serial != handoff.remote.serial for move in freed)


def drained_is_quiet(taken: Taken) -> bool:
    """*Drained* is said when no write is outstanding or unknown."""
    node = taken.step.node
    if not isinstance(node, PrefillNode):
        return True
    said = (c.message.attempt for c in taken.step.commands if isinstance(c, Send) and isinstance(c.message, Drained))
    handoffs = (node.handoffs.get(attempt) for attempt in said)
    return all(h is None or not (h.batches or h.passes or h.unknown) for h in handoffs)


def held_stays(taken: Taken) -> bool:
    """A source page goes only when no attempt holds it."""
    node = taken.step.node
    if not isinstance(node, PrefillNode):
        return True
    gone = {page for move in (PageMove.RELEASE, PageMove.REVOKE) for c in moves(taken, move) for page in c.pages}
    granted = {page for c in moves(taken, PageMove.GRANT) for page in c.pages}
    return not gone or (gone - granted).isdisjoint(page for h in node.handoffs.values() for page in h.pages)


def misread_is_quarantined(taken: Taken) -> bool:
    """A source page that showed another head is not released."""
    before = taken.before
    if not isinstance(before, PrefillNode):
        return True
    entries = ((c, before.pool.held.get(c.serial)) for c in moves(taken, PageMove.RELEASE))
    return not any(entry.bad for _, entry in entries if entry is not None)


def last_page_is_own(taken: Taken) -> bool:
    """The page of a prompt's last token is computed for it, never shared."""
    node = taken.step.node
    if not isinstance(node, PrefillNode):
        return True
    begun = (c for c in taken.step.commands if isinstance(c, StartPrefill) and c.shared)
    return all(sum(len(lot.pages) for lot in c.shared) * node.capacity.page_size < c.num_tokens for c in begun)


def shares(taken: Taken) -> bool:
    """Does a prompt begin with pages of another?"""
    return any(isinstance(c, StartPrefill) and c.shared for c in taken.step.commands)


def shares_at_once(taken: Taken) -> bool:
    """Do several prompts at work hold one page?"""
    node = taken.step.node
    return shares(taken) and isinstance(node, PrefillNode) and any(len(e.holders) > 1 for e in node.pool.held.values())


def evicts(taken: Taken) -> bool:
    """Did pages that nobody held any more make room for others?"""
    begun = any(isinstance(c, StartPrefill) for c in taken.step.commands)
    before = taken.before
    if not begun or not isinstance(before, PrefillNode):
        return False
    held = before.pool.held
    return any(c.serial in held and held[c.serial].num_cached for c in moves(taken, PageMove.RELEASE))


def misread_together(taken: Taken) -> bool:
    """Was a page that several hold found to be another's?"""
    node = taken.step.node
    if not isinstance(taken.event, PassEnded) or not isinstance(node, PrefillNode):
        return False
    several = (c.message for c in taken.step.commands if isinstance(c, Send) and isinstance(c.message, Failed))
    return sum(message.reason is EndReason.STAMP_MISMATCH for message in several) > 1


def oldest_stays(taken: Taken) -> bool:
    """The oldest sequence is never preempted."""
    before, after = taken.before, taken.step.node
    if not isinstance(before, DecodeNode) or not isinstance(after, DecodeNode):
        return True
    running = [h for h in before.handoffs.values() if h.phase is DecodePhase.RUNNING]
    if not running:
        return True
    oldest = after.handoffs.get(min(running, key=lambda h: h.order).attempt)
    return oldest is None or oldest.ending is not EndReason.PREEMPTED


def delivered_in_order(taken: Taken) -> bool:
    """A client gets the current attempt's tokens, each once."""
    before, event = taken.before, taken.event
    delivered = [c for c in taken.step.commands if isinstance(c, Deliver)]
    if not delivered or not isinstance(before, GatewayNode):
        return not delivered
    handoff = before.handoffs.get(delivered[0].attempt)
    if handoff is None or before.current.get(delivered[0].request) != handoff.attempt:
        return False
    return isinstance(event, TokensArrived) and event.first_index == handoff.num_emitted


def no_cut_transfer(taken: Taken) -> bool:
    """A client that leaves cuts no transfer."""
    before = taken.before
    if not isinstance(taken.event, ClientGone) or not isinstance(before, GatewayNode):
        return True
    attempt = before.current.get(taken.event.request)
    handoff = before.handoffs.get(attempt) if attempt is not None else None
    if handoff is None or handoff.phase is not GatewayPhase.DISPATCHED:
        return True
    cancels = (c for c in taken.step.commands if isinstance(c, Send) and isinstance(c.message, Cancel))
    return all(c.to != handoff.decode for c in cancels)


def layouts_agree(taken: Taken) -> bool:
    """Adopted pages have our layout."""
    node = taken.step.node
    if not isinstance(node, DecodeNode) or not moves(taken, PageMove.ADOPT):
        return True
    running = (h for h in node.handoffs.values() if h.phase is DecodePhase.RUNNING)
    return all(h.manifest is not None and h.manifest.layout == node.layout for h in running)


def fenced_by(*events: type) -> Callable[[Taken], bool]:
    """Make the question whether one of these events ended a quarantine."""

    def reached(taken: Taken) -> bool:
        return isinstance(taken.event, events) and bool(moves(taken, PageMove.FENCE))

    return reached


def fenced_by_drain(taken: Taken) -> bool:
    """Did *drained* end a quarantine?"""
    return hears(taken, Drained) and bool(moves(taken, PageMove.FENCE))


def tells_of_silence(taken: Taken) -> bool:
    """Was a client answered because a worker is silent?"""
    return isinstance(taken.event, PeerSilent) and any(isinstance(c, Finish) for c in taken.step.commands)


def silence_moves_no_page(taken: Taken) -> bool:
    """Silence proves nothing: no page moves for it."""
    return not isinstance(taken.event, PeerSilent) or not any(isinstance(c, Move) for c in taken.step.commands)


def hears(taken: Taken, message: type) -> bool:
    """Did a message of this kind arrive?"""
    return isinstance(taken.event, Received) and isinstance(taken.event.envelope.message, message)


def decided(guard: str) -> Callable[[Taken], bool]:
    """Make the question whether a guard was asked and did not hold."""

    def reached(taken: Taken) -> bool:
        return any(d.guard == guard and not d.holds for d in taken.step.decisions)

    return reached


def ended(reason: EndReason) -> Callable[[Taken], bool]:
    """Make the question whether an attempt was told this end."""

    def reached(taken: Taken) -> bool:
        return any(getattr(getattr(c, "message", None), "reason", None) is reason for c in taken.step.commands)

    return reached
