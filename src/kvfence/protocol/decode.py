"""The decode node: what it answers to every message and to its own verification.

It grants pages, has what landed verified, adopts it, and alone lets tokens out (``decode_pass.py``).
Read ``decode_state.py`` first and ``decode_end.py`` after it.
"""

from msgspec.structs import replace

from kvfence.core.errors import LocalProtocolError
from kvfence.core.ids import AttemptId, Incarnation
from kvfence.protocol.admission import context_fit, decode_fit
from kvfence.protocol.commands import FIRST_TOKEN, Adopt, Emit, Move, Send, StartTimer, Verify
from kvfence.protocol.decode_end import end, end_running, give_up
from kvfence.protocol.decode_state import DecodeNode, fence, grant_message, hear, put
from kvfence.protocol.events import Verified
from kvfence.protocol.handoff import DecodeHandoff, advance
from kvfence.protocol.messages import (
    Abort,
    Cancel,
    Closed,
    Commit,
    Drained,
    Ended,
    EndReason,
    Failed,
    Offer,
    Refused,
    Sent,
    Unknown,
)
from kvfence.protocol.transitions import DecodePhase, PageMove
from kvfence.protocol.turn import Turn

# ---- offers and grants -------------------------------------------------------------------------------------------


def on_offer(turn: Turn, node: DecodeNode, sender: Incarnation, message: Offer) -> DecodeNode:
    """Queue an offer that fits, or refuse it; a repeated one is answered as before."""
    attempt = message.attempt
    known = node.handoffs.get(attempt)
    if known is not None:
        _repeat_answer(turn, node, sender, known)
        return node
    reason = _refusal(turn, node, sender, message)
    if reason is not None:
        turn.do(Send(sender, Refused(attempt, reason)))
        return node
    handoff = DecodeHandoff(attempt, message.prefill, message.num_tokens, message.max_tokens)
    turn.do(StartTimer(attempt, message.remaining_ns))
    return replace(put(node, handoff), waiting=(*node.waiting, attempt))


def _refusal(turn: Turn, node: DecodeNode, sender: Incarnation, message: Offer) -> EndReason | None:
    attempt = message.attempt
    current = sender == attempt.gateway and not node.lives.below_floor(attempt)
    if not turn.ask("attempt-is-current", attempt, current):
        return EndReason.STALE
    if message.num_tokens < 1 or message.max_tokens < 1:
        return EndReason.REFUSED_AT_INTAKE
    if message.prefill not in node.lives.peers:
        return EndReason.NO_WORKER
    sums = (
        context_fit(node.capacity, message.num_tokens, message.max_tokens),
        decode_fit(node.capacity, message.num_tokens, message.max_tokens),
    )
    if not turn.ask("fits", attempt, all(fit.holds for fit in sums)):
        return EndReason.DOES_NOT_FIT
    if len(node.waiting) >= node.offers_waiting_max:
        return EndReason.QUEUE_FULL
    return None


def _repeat_answer(turn: Turn, node: DecodeNode, gateway: Incarnation, handoff: DecodeHandoff) -> None:
    if handoff.phase is DecodePhase.GRANTED and handoff.remote is not None:
        turn.do(Send(gateway, grant_message(node, handoff.attempt, handoff.remote)))
    elif handoff.ending is not None:
        turn.do(Send(gateway, Ended(handoff.attempt, handoff.ending, handoff.num_emitted)))


# ---- what prefill says -------------------------------------------------------------------------------------------


def on_sent(turn: Turn, node: DecodeNode, sender: Incarnation, message: Sent) -> DecodeNode:
    """Prefill wrote everything: compare counts with what the gateway offered, then have the bytes verified."""
    attempt, manifest = message.attempt, message.manifest
    handoff = node.handoffs.get(attempt)
    if handoff is None or handoff.remote is None:
        turn.do(Send(sender, Abort(attempt)))
        return node
    if handoff.phase is not DecodePhase.GRANTED:
        if handoff.adopted:
            turn.do(Send(sender, Commit(attempt)))
        elif handoff.phase is not DecodePhase.VERIFYING:
            turn.do(Send(sender, Abort(attempt)))
        return node
    ours = sender == handoff.prefill and message.grant_serial == handoff.remote.serial
    if not turn.ask("attempt-is-current", attempt, ours):
        _turn_away(turn, handoff, sender)
        return node
    if not turn.ask("layout-agrees", attempt, manifest.layout == node.layout):
        return give_up(turn, node, handoff, EndReason.LAYOUT_MISMATCH)
    count_matches = manifest.num_tokens == handoff.num_tokens and len(manifest.origin_pages) == len(
        handoff.remote.pages
    )
    if not turn.ask("count-matches", attempt, count_matches):
        return give_up(turn, node, handoff, EndReason.COUNT_MISMATCH)
    if not turn.ask("stamp-at-adopt", attempt, manifest.origin == sender):
        return give_up(turn, node, handoff, EndReason.STAMP_MISMATCH, mismatch=True)
    turn.do(Verify(attempt, handoff.remote.pages, manifest))
    return put(node, replace(advance(handoff, DecodePhase.VERIFYING), manifest=manifest))


def on_verified(turn: Turn, node: DecodeNode, event: Verified) -> DecodeNode:
    """Adopt pages that carry the promised stamps and digests; a mismatch proves a writer is active."""
    handoff = node.handoffs.get(event.attempt)
    if handoff is None or handoff.phase is not DecodePhase.VERIFYING:
        return node
    if not turn.ask("stamp-at-adopt", event.attempt, not event.bad_stamps):
        return give_up(turn, node, handoff, EndReason.STAMP_MISMATCH, mismatch=True)
    if not turn.ask("digest-matches", event.attempt, event.digests_match):
        return give_up(turn, node, handoff, EndReason.DIGEST_MISMATCH, mismatch=True)
    return _adopt(turn, node, handoff, event.finished)


def _adopt(turn: Turn, node: DecodeNode, handoff: DecodeHandoff, finished: EndReason | None) -> DecodeNode:
    """Adopt the pages and let the first token out, which came with them."""
    remote, manifest = handoff.remote, handoff.manifest
    if remote is None or manifest is None:
        raise LocalProtocolError("a hand-off without pages or manifest cannot be adopted")
    own = handoff.own[0]
    turn.do(
        Move(PageMove.SEAL, remote.serial, remote.pages),
        Move(PageMove.ADOPT, remote.serial, remote.pages),
        Adopt(handoff.attempt, remote.pages, own.serial, own.pages, manifest),
        Emit(FIRST_TOKEN, (handoff.attempt,)),
        Send(handoff.prefill, Commit(handoff.attempt)),
    )
    order = node.last_order + 1
    running = advance(handoff, DecodePhase.RUNNING)
    running = replace(running, adopted=True, order=order, num_emitted=1, ending=finished)
    node = replace(put(node, running), last_order=order)
    return node if finished is None else end_running(turn, node, running)


def on_failed(turn: Turn, node: DecodeNode, sender: Incarnation, message: Failed) -> DecodeNode:
    """Prefill gave up: so does decode, with prefill's reason; Abort asks when the last write ended."""
    handoff = node.handoffs.get(message.attempt)
    if handoff is None or handoff.phase in (DecodePhase.REVOKED, DecodePhase.CLOSED):
        turn.do(Send(sender, Abort(message.attempt)))
        return node
    ours = sender == handoff.prefill and handoff.phase is DecodePhase.GRANTED
    if not turn.ask("attempt-is-current", message.attempt, ours) or not ours:
        _turn_away(turn, handoff, sender)
        return node
    return give_up(turn, node, handoff, message.reason)


def _turn_away(turn: Turn, handoff: DecodeHandoff, sender: Incarnation) -> None:
    """Answer a prefill worker that works on an attempt which is another's; its own prefill is left alone."""
    if sender != handoff.prefill:
        turn.do(Send(sender, Abort(handoff.attempt)))


def on_drained(turn: Turn, node: DecodeNode, sender: Incarnation, message: Drained) -> DecodeNode:
    """The sender's last write has ended: its quarantined pages are free again."""
    handoff = node.handoffs.get(message.attempt)
    if handoff is None or handoff.phase is not DecodePhase.REVOKED or handoff.remote is None:
        return node
    if not turn.ask("attempt-is-current", message.attempt, sender == handoff.prefill):
        return node
    node = put(node, replace(handoff, abort_answered=True))
    entry = node.pool.quarantined.get(handoff.remote.serial)
    if entry is None or not entry.drains:
        return node
    return fence(turn, node, entry)


def on_unknown(turn: Turn, node: DecodeNode, sender: Incarnation, message: Unknown) -> DecodeNode:
    """Writes may still land: the pages wait for the transport's fence."""
    handoff = node.handoffs.get(message.attempt)
    if handoff is None or handoff.phase is not DecodePhase.REVOKED or sender != handoff.prefill:
        return node
    if handoff.remote is None or not turn.ask("drain-or-fence", message.attempt, holds=False):
        return put(node, replace(handoff, abort_answered=True))
    return fence(turn, node, node.pool.quarantined[handoff.remote.serial])


# ---- the gateway -------------------------------------------------------------------------------------------------


def on_cancel(turn: Turn, node: DecodeNode, sender: Incarnation, message: Cancel) -> DecodeNode:
    """End the attempt; one never offered is remembered, so that an Offer overtaken by its Cancel is refused."""
    attempt = message.attempt
    if not turn.ask("attempt-is-current", attempt, sender == attempt.gateway):
        return node
    handoff = node.handoffs.get(attempt)
    if handoff is not None and handoff.ending is not None:
        turn.do(Send(sender, Ended(attempt, handoff.ending, handoff.num_emitted)))
        return node
    if handoff is not None:
        return end(turn, node, attempt, EndReason.CANCELLED)
    turn.do(Send(sender, Ended(attempt, EndReason.CANCELLED, 0)))
    if node.lives.below_floor(attempt) or turn.ask("tombstone", attempt, holds=False):
        return node
    closed = DecodeHandoff(attempt, node.lives.incarnation, 0, 0, DecodePhase.CLOSED, ending=EndReason.CANCELLED)
    return put(node, closed)


def on_closed(node: DecodeNode, sender: Incarnation, message: Closed) -> DecodeNode:
    """The gateway has heard the end."""
    return hear(node, message.attempt) if sender == message.attempt.gateway else node


def on_floor(turn: Turn, node: DecodeNode, gateway: Incarnation, counter: int) -> DecodeNode:
    """Forget tombstones below the floor; an attempt still held below it is over for its gateway: end it."""
    if counter <= node.lives.floor(gateway):
        return node
    node = replace(node, lives=node.lives.raised(gateway, counter))
    below = [h for a, h in node.handoffs.items() if a.gateway == gateway and a.counter < counter]
    node = put(node, *(replace(handoff, heard=True) for handoff in below))
    for handoff in below:
        node = hear(end(turn, node, handoff.attempt, EndReason.CANCELLED), handoff.attempt)
    return node


def on_resend(turn: Turn, node: DecodeNode, attempt: AttemptId) -> DecodeNode:
    """Repeat what is unanswered: Abort to prefill, Ended to the gateway."""
    handoff = node.handoffs.get(attempt)
    if handoff is None:
        return node
    if handoff.phase is DecodePhase.REVOKED and not handoff.abort_answered and handoff.prefill in node.lives.peers:
        turn.do(Send(handoff.prefill, Abort(attempt)))
    if handoff.phase in (DecodePhase.REVOKED, DecodePhase.CLOSED) and handoff.ending is not None and not handoff.heard:
        turn.do(Send(attempt.gateway, Ended(attempt, handoff.ending, handoff.num_emitted)))
    return node
