"""How an attempt ends at decode: given up before adoption, or stopped while running; by whom and by what.

No page is freed here by a clock, and none while a write or a pass on it may be outstanding.
"""

from msgspec.structs import replace

from kvfence.core.errors import LocalProtocolError
from kvfence.core.ids import AttemptId, Incarnation, SessionId
from kvfence.protocol.commands import Send, Stop
from kvfence.protocol.decode_state import DecodeNode, fence, fence_writer, hear, put, release, revoke
from kvfence.protocol.handoff import DecodeHandoff, advance
from kvfence.protocol.lots import Quarantined
from kvfence.protocol.messages import Abort, Ended, EndReason
from kvfence.protocol.transitions import DecodePhase, Fence
from kvfence.protocol.turn import Turn


def end(turn: Turn, node: DecodeNode, attempt: AttemptId, reason: EndReason) -> DecodeNode:
    """End an attempt in whatever phase it is."""
    handoff = node.handoffs.get(attempt)
    if handoff is None or handoff.phase in (DecodePhase.REVOKED, DecodePhase.CLOSED):
        return node
    if handoff.phase is not DecodePhase.RUNNING:
        return give_up(turn, node, handoff, reason)
    if handoff.passes and not turn.ask("pass-ended", attempt, holds=False):
        ending = handoff.ending or reason
        return put(node, replace(handoff, ending=ending))
    return end_running(turn, node, replace(handoff, ending=handoff.ending or reason))


def give_up(
    turn: Turn, node: DecodeNode, handoff: DecodeHandoff, reason: EndReason, *, mismatch: bool = False
) -> DecodeNode:
    """End a hand-off that has not been adopted; pages prefill may still write go to quarantine."""
    attempt, remote = handoff.attempt, handoff.remote
    turn.do(Stop(attempt))
    if remote is None:
        waiting = tuple(a for a in node.waiting if a != attempt)
        return _close(turn, replace(node, waiting=waiting), replace(handoff, ending=reason))
    ended = replace(advance(handoff, DecodePhase.REVOKED), ending=reason, own=())
    entry = Quarantined(remote, attempt, frozenset({handoff.prefill}))
    node = revoke(turn, put(node, ended), entry, mismatch=mismatch)
    node = release(turn, node, handoff.own)
    if handoff.prefill in node.lives.peers:
        turn.do(Send(handoff.prefill, Abort(attempt)))
    _tell_end(turn, node, ended)
    if remote.serial in node.pool.quarantined:
        return node
    return put(node, advance(ended, DecodePhase.CLOSED))


def end_running(turn: Turn, node: DecodeNode, *handoffs: DecodeHandoff) -> DecodeNode:
    """Release every lot of sequences whose passes have ended, but quarantine those with a page that did not match."""
    for handoff in handoffs:
        if handoff.remote is None or handoff.ending is None:
            raise LocalProtocolError("a running sequence has pages and an end")
        turn.do(Stop(handoff.attempt))
        lots = (handoff.remote, *handoff.own)
        for lot in lots:
            if not handoff.bad.isdisjoint(lot.pages):
                node = revoke(turn, node, Quarantined(lot, handoff.attempt, node.lives.writers), mismatch=True)
        node = release(turn, node, (lot for lot in lots if handoff.bad.isdisjoint(lot.pages)))
    return _close(turn, node, *handoffs)


def _close(turn: Turn, node: DecodeNode, *handoffs: DecodeHandoff) -> DecodeNode:
    for handoff in handoffs:
        _tell_end(turn, node, handoff)
    return put(node, *(replace(advance(handoff, DecodePhase.CLOSED), own=()) for handoff in handoffs))


def _tell_end(turn: Turn, node: DecodeNode, handoff: DecodeHandoff) -> None:
    if handoff.ending is None:
        raise LocalProtocolError("an end has a reason")
    if handoff.attempt.gateway in node.lives.peers:
        turn.do(Send(handoff.attempt.gateway, Ended(handoff.attempt, handoff.ending, handoff.num_emitted)))


def on_peer_gone(turn: Turn, node: DecodeNode, peer: Incarnation, *, reaped: bool) -> DecodeNode:
    """Give up what the peer had not handed over; its reaped death is the fence of PEER_EXIT transports.

    On NEW_SESSION transports a dead writer stays suspect: what it posted may land until our engine is rebuilt.
    """
    lives = node.lives.without(peer)
    exit_is_fence = node.fence is not Fence.NEW_SESSION
    if reaped and exit_is_fence:
        lives = replace(lives, writers=lives.writers - {peer})
    node = replace(node, lives=lives)
    for handoff in tuple(node.handoffs.values()):
        if handoff.attempt.gateway == peer:
            node = hear(end(turn, node, handoff.attempt, EndReason.CANCELLED), handoff.attempt)
        elif handoff.prefill == peer and handoff.phase in _NOT_ADOPTED:
            node = give_up(turn, node, handoff, EndReason.WORKER_LOST)
    if exit_is_fence and turn.ask("drain-or-fence", None, holds=reaped):
        node = fence_writer(turn, node, peer)
    return node


_NOT_ADOPTED = (DecodePhase.WAITING, DecodePhase.GRANTED, DecodePhase.VERIFYING)


def on_session_rebuilt(turn: Turn, node: DecodeNode, session: SessionId) -> DecodeNode:
    """Our own receiving engine is a new one: on NEW_SESSION transports nothing old can land any more."""
    if session in node.sessions:
        raise LocalProtocolError("a rebuilt session has an id unlike all before")
    node = replace(node, session=session, sessions=node.sessions | {session})
    if node.fence is not Fence.NEW_SESSION:
        return node
    for handoff in tuple(node.handoffs.values()):
        if handoff.phase in (DecodePhase.GRANTED, DecodePhase.VERIFYING):
            node = give_up(turn, node, handoff, EndReason.TRANSFER_FAILED)
    for entry in tuple(node.pool.quarantined.values()):
        node = fence(turn, node, entry)
    return replace(node, lives=replace(node.lives, writers=node.lives.writers & node.lives.peers))


def on_deadline(turn: Turn, node: DecodeNode, attempt: AttemptId) -> DecodeNode:
    """Time is over: end the attempt. No page is freed by a clock."""
    handoff = node.handoffs.get(attempt)
    if handoff is None:
        return node
    if handoff.phase is DecodePhase.REVOKED and handoff.remote is not None:
        entry = node.pool.quarantined.get(handoff.remote.serial)
        if entry is not None and turn.ask("drain-or-fence", attempt, holds=False):
            return fence(turn, node, entry)
        return node
    return end(turn, node, attempt, EndReason.DEADLINE)
