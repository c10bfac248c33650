"""The gateway node: mints attempts, offers and dispatches them, and knows which tokens are current.

It owns no page. Its rules: one attempt at a time feeds a request, a client's disconnect settles before it
cancels, and everything is answered. The HTTP side is the package ``kvfence.gateway``.
"""

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.errors import LocalProtocolError
from kvfence.core.ids import AttemptId, Incarnation, RequestId
from kvfence.protocol.admission import Capacity, fits
from kvfence.protocol.commands import Deliver, Finish, Resubmit, Send, StartTimer
from kvfence.protocol.events import Submit, TokensArrived
from kvfence.protocol.handoff import GatewayHandoff, advance
from kvfence.protocol.messages import Cancel, Closed, Dispatch, Ended, EndReason, Grant, Offer, Refused
from kvfence.protocol.node import Lives
from kvfence.protocol.transitions import GatewayPhase
from kvfence.protocol.turn import Turn


class GatewayNode(Struct, frozen=True):
    """One gateway's whole protocol state. ``current``: the attempt that feeds each open request."""

    lives: Lives
    capacity: Capacity
    next_counter: int = 1
    handoffs: dict[AttemptId, GatewayHandoff] = {}
    current: dict[RequestId, AttemptId] = {}

    @property
    def floor(self) -> int:
        """The oldest attempt that is still open; all below are over for ever."""
        return min((attempt.counter for attempt in self.handoffs), default=self.next_counter)


def put(node: GatewayNode, handoff: GatewayHandoff) -> GatewayNode:
    """Store an open attempt; forget a closed one, which the floor then passes."""
    handoffs = node.handoffs.copy()
    if handoff.phase is GatewayPhase.CLOSED:
        handoffs.pop(handoff.attempt, None)
    else:
        handoffs[handoff.attempt] = handoff
    return replace(node, handoffs=handoffs)


def _without(current: dict[RequestId, AttemptId], request: RequestId) -> dict[RequestId, AttemptId]:
    rest = current.copy()
    rest.pop(request, None)
    return rest


def on_submit(turn: Turn, node: GatewayNode, event: Submit) -> GatewayNode:
    """Admit a request that fits context and both pools, and offer it to decode."""
    if event.request in node.current:
        raise LocalProtocolError("a request is submitted once")
    if event.num_tokens < 1 or event.max_tokens < 1:
        turn.do(Finish(event.request, EndReason.REFUSED_AT_INTAKE))
        return node
    sums = fits(node.capacity, event.num_tokens, event.max_tokens)
    if not turn.ask("fits", None, all(fit.holds for fit in sums)):
        turn.do(Finish(event.request, EndReason.DOES_NOT_FIT))
        return node
    if not {event.prefill, event.decode} <= node.lives.peers:
        turn.do(Finish(event.request, EndReason.NO_WORKER))
        return node
    return _offer(turn, node, event)


def _offer(turn: Turn, node: GatewayNode, event: Submit) -> GatewayNode:
    attempt = AttemptId(node.lives.incarnation, node.next_counter)
    handoff = GatewayHandoff(
        attempt=attempt,
        request=event.request,
        prefill=event.prefill,
        decode=event.decode,
        num_tokens=event.num_tokens,
        max_tokens=event.max_tokens,
        remaining_ns=event.remaining_ns,
        timer=event.timer or attempt,
        salt=event.salt,
    )
    if event.timer is None:
        turn.do(StartTimer(attempt, event.remaining_ns))
    turn.do(Send(event.decode, _offer_message(handoff)))
    node = replace(node, next_counter=node.next_counter + 1, current={**node.current, event.request: attempt})
    return put(node, handoff)


def _offer_message(handoff: GatewayHandoff) -> Offer:
    return Offer(handoff.attempt, handoff.prefill, handoff.num_tokens, handoff.max_tokens, handoff.remaining_ns)


def _dispatch_message(handoff: GatewayHandoff, grant: Grant) -> Dispatch:
    return Dispatch(handoff.attempt, handoff.decode, grant, handoff.num_tokens, handoff.remaining_ns, handoff.salt)


def on_grant(turn: Turn, node: GatewayNode, sender: Incarnation, message: Grant) -> GatewayNode:
    """Dispatch the prompt to prefill, unless the attempt is over."""
    handoff = node.handoffs.get(message.attempt)
    current = handoff is not None and sender == handoff.decode
    if not turn.ask("attempt-is-current", message.attempt, current) or handoff is None:
        turn.do(Send(sender, Cancel(message.attempt)))
        return node
    if handoff.phase is not GatewayPhase.OFFERED or handoff.cancel_sent:
        return node
    turn.do(Send(handoff.prefill, _dispatch_message(handoff, message)))
    return put(node, replace(advance(handoff, GatewayPhase.DISPATCHED), grant=message))


def on_refused(turn: Turn, node: GatewayNode, sender: Incarnation, message: Refused) -> GatewayNode:
    """Decode will not take the attempt: the client hears why."""
    handoff = node.handoffs.get(message.attempt)
    current = handoff is not None and sender == handoff.decode and handoff.phase is GatewayPhase.OFFERED
    if not turn.ask("attempt-is-current", message.attempt, current) or handoff is None:
        return node
    return put(*_answer(turn, node, advance(handoff, GatewayPhase.CLOSED), message.reason))


def _answer(
    turn: Turn, node: GatewayNode, handoff: GatewayHandoff, reason: EndReason
) -> tuple[GatewayNode, GatewayHandoff]:
    """Finish the client's request, once."""
    if not handoff.answered:
        turn.do(Finish(handoff.request, reason))
        node = replace(node, current=_without(node.current, handoff.request))
    return node, replace(handoff, answered=True)


def on_tokens(turn: Turn, node: GatewayNode, event: TokensArrived) -> GatewayNode:
    """Deliver the current attempt's next tokens; drop all others and tell their decode to stop."""
    handoff = node.handoffs.get(event.attempt)
    current = (
        handoff is not None
        and event.sender == handoff.decode
        and node.current.get(handoff.request) == event.attempt
        and event.first_index == handoff.num_emitted
        and handoff.phase is not GatewayPhase.OFFERED
    )
    if not turn.ask("attempt-is-current", event.attempt, current) or handoff is None:
        return _drop(turn, node, handoff, event)
    if handoff.phase is GatewayPhase.DISPATCHED:
        handoff = advance(handoff, GatewayPhase.STREAMING)
    handoff = replace(handoff, num_emitted=handoff.num_emitted + event.num_tokens)
    if handoff.cancelled:
        return _cancel_now(turn, put(node, handoff), handoff)
    turn.do(Deliver(handoff.request, handoff.attempt, event.num_tokens))
    return put(node, handoff)


def _drop(turn: Turn, node: GatewayNode, handoff: GatewayHandoff | None, event: TokensArrived) -> GatewayNode:
    """Tokens nobody waits for: their decode is told to stop. Where some before them are lost, the client hears so."""
    if handoff is None:
        turn.do(Send(event.sender, Cancel(event.attempt)))
        return node
    if event.sender != handoff.decode:
        return node
    if handoff.cancelled:
        settled = handoff.phase is not GatewayPhase.DISPATCHED
        return _cancel_now(turn, node, handoff if settled else advance(handoff, GatewayPhase.STREAMING))
    if event.first_index > handoff.num_emitted:
        return _give_up(turn, node, handoff, EndReason.WORKER_LOST)
    return node


def on_ended(turn: Turn, node: GatewayNode, sender: Incarnation, message: Ended) -> GatewayNode:
    """The attempt is over at decode. One whose last tokens have not come when it is said again has lost them."""
    handoff = node.handoffs.get(message.attempt)
    if handoff is None:
        turn.do(Send(sender, Closed(message.attempt)))
        return node
    if not turn.ask("attempt-is-current", message.attempt, sender == handoff.decode):
        return node
    if message.num_emitted > handoff.num_emitted and not handoff.answered:
        if not handoff.gap_seen:
            return put(node, replace(handoff, gap_seen=True))  # the tokens may be on their way: decode says Ended again
        message = replace(message, reason=EndReason.WORKER_LOST)
    turn.do(Send(sender, Closed(message.attempt)))
    goes_on = message.reason is EndReason.PREEMPTED and not handoff.answered and not handoff.cancelled
    handoff = advance(handoff, GatewayPhase.CLOSED)
    if not goes_on:
        return put(*_answer(turn, node, handoff, message.reason))
    return _resubmit(turn, put(node, handoff), handoff)


def _resubmit(turn: Turn, node: GatewayNode, old: GatewayHandoff) -> GatewayNode:
    """A preempted sequence goes on as a new attempt, placed anew and through ``fits`` again."""
    num_tokens, max_tokens = old.num_tokens + old.num_emitted, old.max_tokens - old.num_emitted
    turn.do(Resubmit(old.request, old.attempt, num_tokens, max_tokens, old.remaining_ns, old.timer, old.salt))
    return replace(node, current=_without(node.current, old.request))


def on_client_gone(turn: Turn, node: GatewayNode, request: RequestId) -> GatewayNode:
    """Cancel: before dispatch at once; after it when the hand-off has settled, so that no transfer is cut."""
    attempt = node.current.get(request)
    handoff = node.handoffs.get(attempt) if attempt is not None else None
    if handoff is None:
        return node
    node, handoff = _answer(turn, node, replace(handoff, cancelled=True), EndReason.CANCELLED)
    node = put(node, handoff)
    settled = handoff.phase is not GatewayPhase.DISPATCHED
    if turn.ask("settle-before-cancel", handoff.attempt, settled):
        return _cancel_now(turn, node, handoff)
    turn.do(Send(handoff.prefill, Cancel(handoff.attempt)))
    return node


def _cancel_now(turn: Turn, node: GatewayNode, handoff: GatewayHandoff) -> GatewayNode:
    turn.do(Send(handoff.decode, Cancel(handoff.attempt)))
    return put(node, replace(handoff, cancel_sent=True))


def on_deadline(turn: Turn, node: GatewayNode, attempt: AttemptId) -> GatewayNode:
    """Time is over: the client hears so, decode is told to end it; the record waits for decode's Ended."""
    handoff = node.handoffs.get(attempt) or next((h for h in node.handoffs.values() if h.timer == attempt), None)
    return node if handoff is None else _give_up(turn, node, handoff, EndReason.DEADLINE)


def _give_up(turn: Turn, node: GatewayNode, handoff: GatewayHandoff, reason: EndReason) -> GatewayNode:
    node, handoff = _answer(turn, node, replace(handoff, cancelled=True), reason)
    return _cancel_now(turn, node, handoff)


def on_peer_gone(turn: Turn, node: GatewayNode, peer: Incarnation) -> GatewayNode:
    """What a dead decode worker held is lost. For a dead prefill worker decode says what it lost."""
    node = replace(node, lives=node.lives.without(peer))
    for handoff in tuple(node.handoffs.values()):
        if handoff.decode == peer:
            node = put(*_answer(turn, node, advance(handoff, GatewayPhase.CLOSED), EndReason.WORKER_LOST))
    return node


def on_peer_silent(turn: Turn, node: GatewayNode, peer: Incarnation) -> GatewayNode:
    """Nobody knows when a silent worker goes on: its clients hear so now, decode is told to end what waits for it.

    No page moves here: decode quarantines what a silent prefill may still write until that says *drained* or is
    reaped. What prefill has handed over runs on without it.
    """
    for handoff in tuple(node.handoffs.values()):
        waits = handoff.prefill == peer and handoff.phase is not GatewayPhase.STREAMING
        if (waits or handoff.decode == peer) and not handoff.answered:
            node = _give_up(turn, node, handoff, EndReason.WORKER_LOST)
    return node


def on_resend(turn: Turn, node: GatewayNode, attempt: AttemptId) -> GatewayNode:
    """Repeat what is unanswered."""
    handoff = node.handoffs.get(attempt)
    if handoff is None:
        return node
    if handoff.cancel_sent:
        turn.do(Send(handoff.decode, Cancel(attempt)))
    elif handoff.phase is GatewayPhase.OFFERED:
        turn.do(Send(handoff.decode, _offer_message(handoff)))
    elif handoff.phase is GatewayPhase.DISPATCHED and handoff.grant is not None:
        turn.do(Send(handoff.prefill, _dispatch_message(handoff, handoff.grant)))
        if handoff.cancelled:
            turn.do(Send(handoff.prefill, Cancel(attempt)))
    return node
