"""What must hold, each property stated once: of a node, of a step, of a whole world.

*always*: after every step. *sometimes*: at least once, or the run tested nothing. *at rest*: once nothing is left
to happen. The live server, simulation and search check the same functions. A ``World`` is what a driver of the whole
system can say; a node alone cannot know what bytes a token was computed from.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain, pairwise
from typing import Literal, Protocol

from msgspec import Struct

from kvfence.core.ids import AttemptId, RequestId
from kvfence.core.pages import PageState
from kvfence.protocol.commands import Deliver, Emit, Move, Send
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import (
    ClientGone,
    DeadlinePassed,
    Event,
    PassEnded,
    PeerGone,
    Received,
    Resend,
    SessionRebuilt,
    TokensArrived,
    Verified,
)
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.messages import Cancel, Drained, EndReason, Unknown
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.step import Node, Step
from kvfence.protocol.transitions import DecodePhase, Fence, GatewayPhase, PageMove, PrefillPhase

Kind = Literal["always", "sometimes", "at rest"]
HeldLot = tuple[PageState, int, tuple[int, ...]]


class Taken(Struct, frozen=True):
    """One step taken."""

    before: Node
    event: Event
    step: Step


class World(Protocol):
    """What a driver of all nodes knows."""

    @property
    def nodes(self) -> Iterable[Node]:
        """The node of every live process."""

    @property
    def disagreements(self) -> Collection[object]:
        """Pages of which a ledger and its node say different things."""

    @property
    def wrong_reads(self) -> Collection[object]:
        """Tokens that left although they were computed from bytes that were not their sequence's own."""

    @property
    def stray_writes(self) -> Collection[object]:
        """Writes, other than misdirected ones, that landed in a page neither granted for them nor quarantined."""

    @property
    def changed_sources(self) -> Collection[object]:
        """Posted writes that read a source page after it was somebody else's."""

    @property
    def stale_slots(self) -> Collection[object]:
        """Pages posted with another request's bytes behind their last token."""

    @property
    def ends(self) -> Mapping[RequestId, Collection[EndReason]]:
        """What the client of every submitted request was told, in order."""

    @property
    def misfits(self) -> Collection[RequestId]:
        """Requests that fit no pool or not the context."""


class NodeProperty(Struct, frozen=True):
    """Holds of every node, whatever happens around it."""

    name: str
    statement: str
    holds: Callable[[Node], bool]
    kind: Kind = "always"


class StepProperty(Struct, frozen=True):
    """Holds of every step, or is reached by one."""

    name: str
    statement: str
    holds: Callable[[Taken], bool]
    kind: Kind = "always"


class WorldProperty(Struct, frozen=True):
    """Holds of the whole system."""

    name: str
    statement: str
    holds: Callable[[World], bool]
    kind: Kind = "always"


# ---- what a node holds -------------------------------------------------------------------------------------------


def held_lots(node: Node) -> list[HeldLot]:
    """Give every lot that is not free as the ledger should show it."""
    if isinstance(node, GatewayNode):
        return []
    lots = [(PageState.QUARANTINED, q.lot.serial, q.lot.pages) for q in node.pool.quarantined.values()]
    if isinstance(node, PrefillNode):
        for handoff in node.handoffs.values():
            if handoff.lot is not None:
                sealed, rest = handoff.lot.pages[: handoff.num_sealed], handoff.lot.pages[handoff.num_sealed :]
                lots += [(PageState.SEALED, handoff.lot.serial, sealed), (PageState.GRANTED, handoff.lot.serial, rest)]
        return lots
    for held in node.handoffs.values():
        if held.phase in _HOLDING and held.remote is not None:
            state = PageState.ADOPTED if held.phase is DecodePhase.RUNNING else PageState.GRANTED
            lots.append((state, held.remote.serial, held.remote.pages))
            lots += [(PageState.GRANTED, lot.serial, lot.pages) for lot in held.own]
    return lots


_HOLDING = (DecodePhase.GRANTED, DecodePhase.VERIFYING, DecodePhase.RUNNING)


def _accounting(node: Node) -> bool:
    if isinstance(node, GatewayNode):
        return True
    pages = [*chain.from_iterable(lot[2] for lot in held_lots(node)), *chain.from_iterable(node.pool.free)]
    free = sum(map(len, node.pool.free))
    return free == node.pool.num_free and len(pages) == node.pool.num_pages and len(set(pages)) == len(pages)


def _waiting_wait(node: Node) -> bool:
    if isinstance(node, GatewayNode):
        return True
    phase = DecodePhase.WAITING if isinstance(node, DecodeNode) else PrefillPhase.WAITING
    return sorted(node.waiting) == sorted(a for a, h in node.handoffs.items() if h.phase is phase)


def _batches_bounded(node: Node) -> bool:
    if not isinstance(node, PrefillNode):
        return True
    return all(sum(n for _, n in h.batches) <= node.batch_pages_max for h in node.handoffs.values())


def _work_holds_pages(node: Node) -> bool:
    if isinstance(node, PrefillNode):
        return all(h.lot is not None for h in node.handoffs.values() if h.batches or h.passes)
    if isinstance(node, DecodeNode):
        at_work = (h for attempts in node.passes.values() for a in attempts for h in (node.handoffs.get(a),))
        return all(h is not None and h.phase is DecodePhase.RUNNING for h in at_work)
    return True


def _revoked_is_quarantined(node: Node) -> bool:
    if not isinstance(node, DecodeNode):
        return True
    revoked = [h.remote for h in node.handoffs.values() if h.phase is DecodePhase.REVOKED]
    return all(lot is not None and lot.serial in node.pool.quarantined for lot in revoked)


def _one_attempt_feeds(node: Node) -> bool:
    if not isinstance(node, GatewayNode):
        return True
    open_now = list(node.current.values())
    return len(set(open_now)) == len(open_now) and all(a in node.handoffs for a in open_now)


# ---- what a step may do ------------------------------------------------------------------------------------------


def _serials_grow(taken: Taken) -> bool:
    before, after = taken.before, taken.step.node
    if isinstance(before, GatewayNode) or isinstance(after, GatewayNode):
        return True
    granted = [c.serial for c in _moves(taken, PageMove.GRANT)]
    rising = all(a < b for a, b in pairwise(granted))
    return rising and all(before.pool.next_serial <= s < after.pool.next_serial for s in granted)


def _moves(taken: Taken, move: PageMove) -> list[Move]:
    return [c for c in taken.step.commands if isinstance(c, Move) and c.move is move]


def _floors_grow(taken: Taken) -> bool:
    floors = taken.step.node.lives.floors
    return all(floors.get(gateway, 0) >= counter for gateway, counter in taken.before.lives.floors.items())


def _waiting_is_fifo(taken: Taken) -> bool:
    before, after = taken.before, taken.step.node
    if isinstance(before, GatewayNode) or isinstance(after, GatewayNode):
        return True
    served = {a for a in before.waiting if getattr(after.handoffs.get(a), "phase", None) in _SERVED}
    first_left = next((i for i, a in enumerate(before.waiting) if a in after.waiting), len(before.waiting))
    return served <= set(before.waiting[:first_left])


_SERVED = (DecodePhase.GRANTED, PrefillPhase.RUNNING)


def _adopted_is_verified(taken: Taken) -> bool:
    if not _moves(taken, PageMove.ADOPT):
        return True
    event = taken.event
    return isinstance(event, Verified) and not event.bad_stamps and event.digests_match


def _emitted_is_clean(taken: Taken) -> bool:
    out = {a for c in taken.step.commands if isinstance(c, Emit) for a in c.attempts}
    if isinstance(taken.event, PassEnded):
        return out.isdisjoint(a for a, pages in taken.event.bad if pages)
    return not out or isinstance(taken.event, Verified)


def _fence_has_proof(taken: Taken) -> bool:
    before = taken.before
    fenced = _moves(taken, PageMove.FENCE)
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


def _no_timer_frees(taken: Taken) -> bool:
    if not isinstance(taken.event, DeadlinePassed) or not isinstance(taken.before, DecodeNode):
        return True
    handoff = taken.before.handoffs.get(taken.event.attempt)
    if handoff is None or handoff.remote is None or handoff.phase is DecodePhase.RUNNING:
        return True
    freed = [*_moves(taken, PageMove.RELEASE), *_moves(taken, PageMove.FENCE)]
    return _nobody_writes(taken.before) or all(move.serial != handoff.remote.serial for move in freed)


def _drained_is_quiet(taken: Taken) -> bool:
    node = taken.step.node
    if not isinstance(node, PrefillNode):
        return True
    said = (c.message.attempt for c in taken.step.commands if isinstance(c, Send) and isinstance(c.message, Drained))
    handoffs = (node.handoffs.get(attempt) for attempt in said)
    return all(h is None or not (h.batches or h.passes or h.unknown) for h in handoffs)


def _oldest_stays(taken: Taken) -> bool:
    before, after = taken.before, taken.step.node
    if not isinstance(before, DecodeNode) or not isinstance(after, DecodeNode):
        return True
    running = [h for h in before.handoffs.values() if h.phase is DecodePhase.RUNNING]
    if not running:
        return True
    oldest = after.handoffs.get(min(running, key=lambda h: h.order).attempt)
    return oldest is None or oldest.ending is not EndReason.PREEMPTED


def _delivered_in_order(taken: Taken) -> bool:
    before, event = taken.before, taken.event
    delivered = [c for c in taken.step.commands if isinstance(c, Deliver)]
    if not delivered or not isinstance(before, GatewayNode):
        return not delivered
    handoff = before.handoffs.get(delivered[0].attempt)
    if handoff is None or before.current.get(delivered[0].request) != handoff.attempt:
        return False
    return isinstance(event, TokensArrived) and event.first_index == handoff.num_emitted


def _no_cut_transfer(taken: Taken) -> bool:
    before = taken.before
    if not isinstance(taken.event, ClientGone) or not isinstance(before, GatewayNode):
        return True
    attempt = before.current.get(taken.event.request)
    handoff = before.handoffs.get(attempt) if attempt is not None else None
    if handoff is None or handoff.phase is not GatewayPhase.DISPATCHED:
        return True
    cancels = (c for c in taken.step.commands if isinstance(c, Send) and isinstance(c.message, Cancel))
    return all(c.to != handoff.decode for c in cancels)


def _layouts_agree(taken: Taken) -> bool:
    node = taken.step.node
    if not isinstance(node, DecodeNode) or not _moves(taken, PageMove.ADOPT):
        return True
    running = (h for h in node.handoffs.values() if h.phase is DecodePhase.RUNNING)
    return all(h.manifest is not None and h.manifest.layout == node.layout for h in running)


# ---- the lists ---------------------------------------------------------------------------------------------------

OF_NODES: tuple[NodeProperty, ...] = (
    NodeProperty("accounting", "Free, held and quarantined pages are the pool; no page is in two lots.", _accounting),
    NodeProperty("waiting-wait", "Who waits for pages is in the queue, once, and nobody else is.", _waiting_wait),
    NodeProperty("batches-bounded", "An attempt has at most batch_pages_max writes outstanding.", _batches_bounded),
    NodeProperty("work-holds-pages", "No page is free while a pass or a posted write uses it.", _work_holds_pages),
    NodeProperty("revoked-is-quarantined", "A given-up hand-off's pages are quarantined.", _revoked_is_quarantined),
    NodeProperty("one-attempt-feeds", "One attempt at a time feeds a request.", _one_attempt_feeds),
)

OF_STEPS: tuple[StepProperty, ...] = (
    StepProperty("serials-grow", "A grant's serial exceeds every one before it.", _serials_grow),
    StepProperty("floors-grow", "A floor never moves down.", _floors_grow),
    StepProperty("waiting-is-fifo", "Pages go to whoever has waited longest.", _waiting_is_fifo),
    StepProperty(
        "adopted-is-verified", "Pages are adopted only after their bytes were verified.", _adopted_is_verified
    ),
    StepProperty("emitted-is-clean", "A token leaves only when every page of its pass matched.", _emitted_is_clean),
    StepProperty("fence-has-proof", "Quarantine ends by *drained* or this transport's fence.", _fence_has_proof),
    StepProperty("no-timer-frees", "No page a peer may write is freed by a timer.", _no_timer_frees),
    StepProperty("drained-is-quiet", "*Drained* is said when no write is outstanding or unknown.", _drained_is_quiet),
    StepProperty("oldest-stays", "The oldest sequence is never preempted.", _oldest_stays),
    StepProperty("delivered-in-order", "A client gets the current attempt's tokens, each once.", _delivered_in_order),
    StepProperty("no-cut-transfer", "A client that leaves cuts no transfer.", _no_cut_transfer),
    StepProperty("layouts-agree", "Adopted pages have our layout.", _layouts_agree),
)


def _at_rest(node: Node) -> bool:
    if isinstance(node, GatewayNode):
        return not node.handoffs and not node.current
    closed = DecodePhase.CLOSED if isinstance(node, DecodeNode) else PrefillPhase.CLOSED
    return not node.waiting and not node.passes and all(h.phase is closed for h in node.handoffs.values())


def _answered(node: Node) -> bool:
    if isinstance(node, DecodeNode):
        return all(h.heard for h in node.handoffs.values() if h.ending is not None)
    return not isinstance(node, PrefillNode) or not any(h.answer for h in node.handoffs.values())


def _all_free(node: Node) -> bool:
    return isinstance(node, GatewayNode) or node.pool.num_free == node.pool.num_pages


OF_WORLDS: tuple[WorldProperty, ...] = (
    WorldProperty("ledger-agrees", "A node's lots and its page table say the same.", lambda w: not w.disagreements),
    WorldProperty(
        "reads-own-bytes", "No token leaves that read bytes of another sequence.", lambda w: not w.wrong_reads
    ),
    WorldProperty(
        "no-stray-write", "A write lands in pages granted for it or quarantined.", lambda w: not w.stray_writes
    ),
    WorldProperty("source-held", "A posted write reads what it was posted for.", lambda w: not w.changed_sources),
    WorldProperty(
        "sends-own-bytes", "Nothing of another request is sent behind the last token.", lambda w: not w.stale_slots
    ),
    WorldProperty("ends-once", "A client is told one end.", lambda w: all(len(e) <= 1 for e in w.ends.values())),
    WorldProperty(
        "refusal-arrives",
        "A request that does not fit is told so.",
        lambda w: all(EndReason.DOES_NOT_FIT in e for r, e in w.ends.items() if e and r in w.misfits),
    ),
    WorldProperty("all-answered", "Every message is answered.", lambda w: all(map(_answered, w.nodes)), "at rest"),
    WorldProperty("nothing-stuck", "Every hand-off is over.", lambda w: all(map(_at_rest, w.nodes)), "at rest"),
    WorldProperty("pages-return", "Every page is free again.", lambda w: all(map(_all_free, w.nodes)), "at rest"),
    WorldProperty("all-end", "Every client is told an end.", lambda w: all(w.ends.values()), "at rest"),
)


# ---- what a run must reach ---------------------------------------------------------------------------------------


def _fenced_by(*events: type) -> Callable[[Taken], bool]:
    def reached(taken: Taken) -> bool:
        return isinstance(taken.event, events) and bool(_moves(taken, PageMove.FENCE))

    return reached


def _fenced_by_drain(taken: Taken) -> bool:
    return _hears(taken, Drained) and bool(_moves(taken, PageMove.FENCE))


def _hears(taken: Taken, message: type) -> bool:
    return isinstance(taken.event, Received) and isinstance(taken.event.envelope.message, message)


def _decided(guard: str) -> Callable[[Taken], bool]:
    def reached(taken: Taken) -> bool:
        return any(d.guard == guard and not d.holds for d in taken.step.decisions)

    return reached


def _ended(reason: EndReason) -> Callable[[Taken], bool]:
    def reached(taken: Taken) -> bool:
        return any(getattr(getattr(c, "message", None), "reason", None) is reason for c in taken.step.commands)

    return reached


SOMETIMES: tuple[StepProperty, ...] = (
    StepProperty("adopted", "Pages are adopted.", lambda t: bool(_moves(t, PageMove.ADOPT)), "sometimes"),
    StepProperty("preempted", "A young sequence is preempted.", _ended(EndReason.PREEMPTED), "sometimes"),
    StepProperty("fenced-by-drain", "*Drained* ends a quarantine.", _fenced_by_drain, "sometimes"),
    StepProperty("fenced-by-exit", "A reaped writer ends a quarantine.", _fenced_by(PeerGone), "sometimes"),
    StepProperty("fenced-by-session", "A new session ends a quarantine.", _fenced_by(SessionRebuilt), "sometimes"),
    StepProperty(
        "unknown-said", "A sender does not know when its writes end.", lambda t: _hears(t, Unknown), "sometimes"
    ),
    StepProperty("tombstone-used", "A dispatch comes after its abort.", _decided("tombstone"), "sometimes"),
    StepProperty(
        "resend-needed",
        "A message is lost and said again.",
        lambda t: isinstance(t.event, Resend) and bool(t.step.commands),
        "sometimes",
    ),
    StepProperty(
        "cancelled-in-transfer", "A client leaves after dispatch.", _decided("settle-before-cancel"), "sometimes"
    ),
    StepProperty("mismatch-at-adopt", "A landed page is not as promised.", _decided("stamp-at-adopt"), "sometimes"),
    StepProperty("mismatch-at-read", "A page in use is written over.", _decided("stamp-at-read"), "sometimes"),
    StepProperty("digest-differs", "Landed bytes are not those promised.", _decided("digest-matches"), "sometimes"),
    StepProperty("deadline-passed", "An attempt runs out of time.", _ended(EndReason.DEADLINE), "sometimes"),
    StepProperty("worker-lost", "A worker dies with work in hand.", _ended(EndReason.WORKER_LOST), "sometimes"),
)


def broken_by(taken: Taken) -> list[str]:
    """Name the properties of nodes and steps that this step breaks."""
    after = taken.step.node
    broken = [p.name for p in OF_NODES if not p.holds(after)]
    return broken + [p.name for p in OF_STEPS if not p.holds(taken)]


def reached_by(taken: Taken) -> list[str]:
    """Name what must sometimes happen and happened in this step."""
    return [p.name for p in SOMETIMES if p.holds(taken)]


def broken_in(world: World, *, at_rest: bool = False) -> list[str]:
    """Name the properties that a world breaks now."""
    return [p.name for p in OF_WORLDS if (p.kind == "always" or at_rest) and not p.holds(world)]


def open_attempts(node: Node) -> list[AttemptId]:
    """Attempts of which something may still have to be said again."""
    return list(node.handoffs)
