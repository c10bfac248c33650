"""How an attempt ends at prefill: committed, aborted, failed or cancelled; and when its source pages are free.

*Drained* is said only when no write of the attempt is outstanding and none ended in non-success.
"""

from msgspec.structs import replace

from kvfence.core.ids import AttemptId, Incarnation, SessionId
from kvfence.protocol.commands import Move, Send, Stop
from kvfence.protocol.handoff import PrefillHandoff, advance
from kvfence.protocol.lots import fence_lot
from kvfence.protocol.messages import Abort, Cancel, Commit, Drained, EndReason, Failed, Unknown
from kvfence.protocol.prefill import PrefillNode, put
from kvfence.protocol.sharing import bound_lots, doubt, leave
from kvfence.protocol.transitions import PageMove, PrefillPhase
from kvfence.protocol.turn import Turn


def on_commit(turn: Turn, node: PrefillNode, sender: Incarnation, message: Commit, num_known: int) -> PrefillNode:
    """Decode verified and adopted the pages: the source is free, or stays for others of its salt."""
    handoff = node.handoffs.get(message.attempt)
    if handoff is None or handoff.phase is not PrefillPhase.SENT:
        return node
    if not turn.ask("attempt-is-current", message.attempt, sender == handoff.decode):
        return node
    closed = replace(advance(handoff, PrefillPhase.CLOSED), committed=True, num_known=num_known)
    return settle(turn, put(node, closed), message.attempt)


def on_abort(turn: Turn, node: PrefillNode, sender: Incarnation, message: Abort) -> PrefillNode:
    """Stop the attempt and answer when its last write has ended; remember it, in case its dispatch comes later."""
    attempt = message.attempt
    handoff = node.handoffs.get(attempt)
    if handoff is None:
        turn.do(Send(sender, Drained(attempt)))
        if node.lives.below_floor(attempt) or turn.ask("tombstone", attempt, holds=False):
            return node
        return put(node, PrefillHandoff(attempt, sender, 0, PrefillPhase.CLOSED))
    if handoff.phase is PrefillPhase.CLOSED:
        _answer(turn, handoff, sender)
        return node
    if not turn.ask("attempt-is-current", attempt, sender == handoff.decode):
        return node
    if handoff.phase is PrefillPhase.SENT and handoff.shared:
        node = replace(node, pool=doubt(node.pool, handoff.shared))
    node = stop(turn, node, replace(handoff, answer=True, reason=handoff.reason or EndReason.CANCELLED))
    return settle(turn, node, attempt)


def _answer(turn: Turn, handoff: PrefillHandoff, to: Incarnation) -> None:
    turn.do(Send(to, (Unknown if handoff.unknown else Drained)(handoff.attempt)))


def stop(turn: Turn, node: PrefillNode, handoff: PrefillHandoff) -> PrefillNode:
    """Begin no further chunk or batch of an attempt."""
    turn.do(Stop(handoff.attempt))
    busy = bool(handoff.batches or handoff.passes)
    if handoff.phase is not PrefillPhase.ABORTING:
        handoff = advance(handoff, PrefillPhase.ABORTING if busy else PrefillPhase.CLOSED)
    return put(_not_waiting(node, handoff.attempt), handoff)


def _not_waiting(node: PrefillNode, attempt: AttemptId) -> PrefillNode:
    if node.handoffs[attempt].phase is not PrefillPhase.WAITING:
        return node
    return replace(node, waiting=tuple(a for a in node.waiting if a != attempt))


def fail(turn: Turn, node: PrefillNode, attempt: AttemptId) -> PrefillNode:
    """Say Failed to decode; its Abort will ask for the drain."""
    handoff = node.handoffs.get(attempt)
    if handoff is None or handoff.phase not in (PrefillPhase.WAITING, PrefillPhase.RUNNING) or handoff.reason is None:
        return node
    turn.do(Stop(attempt), Send(handoff.decode, Failed(attempt, handoff.reason)))
    return put(_not_waiting(node, attempt), advance(handoff, PrefillPhase.FAILED))


def settle(turn: Turn, node: PrefillNode, attempt: AttemptId) -> PrefillNode:
    """Free the source and answer the abort, as far as passes and batches have ended."""
    handoff = node.handoffs.get(attempt)
    if handoff is None or handoff.phase in (PrefillPhase.WAITING, PrefillPhase.RUNNING, PrefillPhase.SENT):
        return node
    if handoff.lot is not None and _source_is_free(turn, handoff):
        node, handoff = _let_go(turn, node, handoff)
    quiet = not handoff.batches and not handoff.passes
    if quiet and handoff.phase is PrefillPhase.ABORTING:
        handoff = advance(handoff, PrefillPhase.CLOSED)
    if handoff.answer and turn.ask("drain-or-fence", attempt, quiet):
        _answer(turn, handoff, handoff.decode)
        handoff = replace(handoff, answer=False)
    return put(node, handoff)


def _source_is_free(turn: Turn, handoff: PrefillHandoff) -> bool:
    if handoff.passes and not turn.ask("pass-ended", handoff.attempt, holds=False):
        return False
    return not handoff.batches or turn.ask("hold-source", handoff.attempt, holds=False)


def _let_go(turn: Turn, node: PrefillNode, handoff: PrefillHandoff) -> tuple[PrefillNode, PrefillHandoff]:
    """Leave every lot: what nobody else holds is free, stays cached, or is quarantined."""
    pool = leave(turn, node.pool, handoff, node.capacity.page_size, node.lives.incarnation)
    pool = bound_lots(turn, pool, node.cached_lots_max)
    return replace(node, pool=pool), replace(handoff, lot=None, shared=())


def on_cancel(turn: Turn, node: PrefillNode, message: Cancel) -> PrefillNode:
    """The client left: skip what has not begun and say Failed, in order."""
    handoff = node.handoffs.get(message.attempt)
    if handoff is None or handoff.phase not in (PrefillPhase.WAITING, PrefillPhase.RUNNING):
        return node
    node = put(node, replace(handoff, reason=handoff.reason or EndReason.CANCELLED))
    return settle(turn, fail(turn, node, message.attempt), message.attempt)


def on_deadline(turn: Turn, node: PrefillNode, attempt: AttemptId) -> PrefillNode:
    """Time is over: begin nothing more."""
    handoff = node.handoffs.get(attempt)
    if handoff is None or handoff.phase not in (PrefillPhase.WAITING, PrefillPhase.RUNNING):
        return node
    node = put(node, replace(handoff, reason=handoff.reason or EndReason.DEADLINE))
    return settle(turn, fail(turn, node, attempt), attempt)


def on_peer_gone(turn: Turn, node: PrefillNode, peer: Incarnation) -> PrefillNode:
    """Stop what was for a dead decode worker, and what a dead gateway asked for."""
    node = replace(node, lives=node.lives.without(peer))
    for handoff in tuple(node.handoffs.values()):
        if handoff.phase is PrefillPhase.CLOSED:
            node = put(node, handoff)
        elif handoff.decode == peer:
            node = settle(turn, stop(turn, node, replace(handoff, answer=False)), handoff.attempt)
        elif handoff.attempt.gateway == peer:
            node = on_cancel(turn, node, Cancel(handoff.attempt))
    return node


def on_session_rebuilt(turn: Turn, node: PrefillNode, session: SessionId) -> PrefillNode:
    """Our own engine is a new one: no failed batch of the old one reads a source any more."""
    del session
    for entry in tuple(node.pool.quarantined.values()):
        turn.do(Move(PageMove.FENCE, entry.lot.serial, entry.lot.pages))
        node = replace(node, pool=fence_lot(node.pool, entry.lot.serial))
    return node


def on_floor(turn: Turn, node: PrefillNode, gateway: Incarnation, counter: int) -> PrefillNode:
    """Forget tombstones below the floor; an attempt still held below it is over: cancel it."""
    if counter <= node.lives.floor(gateway):
        return node
    node = replace(node, lives=node.lives.raised(gateway, counter))
    for attempt in [a for a in node.handoffs if a.gateway == gateway and a.counter < counter]:
        handoff = node.handoffs[attempt]
        if handoff.phase is PrefillPhase.CLOSED and handoff.lot is None:
            node = put(node, handoff)
        else:
            node = on_cancel(turn, node, Cancel(attempt))
    return node
