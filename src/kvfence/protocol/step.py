"""``step``: the only place where protocol state changes. The live server, simulation and search all call it.

Pure: it never mutates, does no I/O, knows no clock. Commands say what the driver must do, decisions say which
guard was asked and what it answered. An event illegal for us raises ``LocalProtocolError`` and changes nothing;
a message illegal from a peer is answered and counted (``peer-is-current``, ``attempt-is-current``).
"""

from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.errors import LocalProtocolError
from kvfence.core.ids import AttemptId, Incarnation
from kvfence.protocol import decode, decode_end, decode_pass, decode_state, gateway, prefill, prefill_end
from kvfence.protocol.commands import Command
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import (
    BatchEnded,
    ClientGone,
    DeadlinePassed,
    Event,
    FloorMoved,
    PagesSealed,
    PassBegan,
    PassEnded,
    PeerGone,
    PeerSilent,
    PeerUp,
    Received,
    Resend,
    SessionRebuilt,
    Submit,
    TokensArrived,
    Verified,
)
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import Decision, Rules
from kvfence.protocol.messages import (
    Abort,
    Cancel,
    Closed,
    Commit,
    Dispatch,
    Drained,
    Ended,
    Envelope,
    Failed,
    Floor,
    Grant,
    Offer,
    Refused,
    Sent,
    Unknown,
)
from kvfence.protocol.node import is_current
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.turn import Turn

Node = DecodeNode | PrefillNode | GatewayNode
N = TypeVar("N", DecodeNode, PrefillNode, GatewayNode)


class Step(Struct, frozen=True):
    """What one event led to."""

    node: Node
    commands: tuple[Command, ...]
    decisions: tuple[Decision, ...]


def step(rules: Rules, node: Node, event: Event) -> Step:
    """Give the node's next state, what to do, and which guards were asked.

    Raises:
        LocalProtocolError: the event is illegal for this node now; a bug in the caller.
    """
    if isinstance(node, DecodeNode):
        turn = Turn(rules, "decode")
        after: Node = decode_state.grant_waiting(turn, _step_decode(turn, node, event))
    elif isinstance(node, PrefillNode):
        turn = Turn(rules, "prefill")
        after = prefill.grant_waiting(turn, _step_prefill(turn, node, event))
    else:
        turn = Turn(rules, "gateway")
        after = _step_gateway(turn, node, event)
    return Step(after, tuple(turn.commands), tuple(turn.decisions))


def _meet(node: N, event: PeerUp) -> N:
    writers = node.lives.writers | {event.peer} if event.writes else node.lives.writers
    lives = replace(node.lives, peers=node.lives.peers | {event.peer}, writers=writers)
    return replace(node, lives=lives)


def _unread(turn: Turn, node: N, envelope: Envelope) -> N:
    """A message that is not for this kind of node is counted and changes nothing."""
    turn.ask("attempt-is-current", getattr(envelope.message, "attempt", None), holds=False)
    return node


def _illegal(node: Node, event: Event) -> LocalProtocolError:
    return LocalProtocolError(f"{type(event).__name__} is not an event of {type(node).__name__}")


def _step_decode(turn: Turn, node: DecodeNode, event: Event) -> DecodeNode:
    match event:
        case Received():
            return _decode_receives(turn, node, event)
        case PassBegan():
            return decode_pass.on_pass_began(turn, node, event)
        case PassEnded():
            return decode_pass.on_pass_ended(turn, node, event)
        case Verified():
            return decode.on_verified(turn, node, event)
        case DeadlinePassed():
            return decode_end.on_deadline(turn, node, event.attempt)
        case Resend():
            return decode.on_resend(turn, node, event.attempt)
        case PeerUp():
            return _meet(node, event)
        case PeerGone():
            return decode_end.on_peer_gone(turn, node, event.peer, reaped=event.reaped)
        case SessionRebuilt():
            return decode_end.on_session_rebuilt(turn, node, event.session)
        case FloorMoved():
            return decode.on_floor(turn, node, event.gateway, event.counter)
    raise _illegal(node, event)


def _decode_receives(turn: Turn, node: DecodeNode, event: Received) -> DecodeNode:
    envelope = event.envelope
    sender = envelope.sender
    if not is_current(turn, node.lives, envelope):
        return node
    match envelope.message:
        case Offer() as message:
            return decode.on_offer(turn, node, sender, message)
        case Sent() as message:
            return decode.on_sent(turn, node, sender, message)
        case Failed() as message:
            return decode.on_failed(turn, node, sender, message)
        case Drained() as message:
            return decode.on_drained(turn, node, sender, message)
        case Unknown() as message:
            return decode.on_unknown(turn, node, sender, message)
        case Cancel() as message:
            return decode.on_cancel(turn, node, sender, message)
        case Closed() as message:
            return decode.on_closed(node, sender, message)
        case Floor() as message:
            return decode.on_floor(turn, node, sender, message.counter)
    return _unread(turn, node, envelope)


def _step_prefill(turn: Turn, node: PrefillNode, event: Event) -> PrefillNode:
    match event:
        case Received():
            return _prefill_receives(turn, node, event)
        case PassBegan():
            return prefill.on_pass_began(turn, node, event)
        case PassEnded():
            return _afterwards(turn, *prefill.on_pass_ended(turn, node, event))
        case PagesSealed():
            return _afterwards(turn, prefill.on_pages_sealed(turn, node, event), (event.attempt,))
        case BatchEnded():
            return _afterwards(turn, prefill.on_batch_ended(turn, node, event), (event.attempt,))
        case DeadlinePassed():
            return prefill_end.on_deadline(turn, node, event.attempt)
        case Resend():
            return prefill.on_resend(turn, node, event.attempt)
        case PeerUp():
            return _meet(node, event)
        case PeerGone():
            return prefill_end.on_peer_gone(turn, node, event.peer)
        case SessionRebuilt():
            return prefill_end.on_session_rebuilt(turn, node, event.session)
        case FloorMoved():
            return prefill_end.on_floor(turn, node, event.gateway, event.counter)
    raise _illegal(node, event)


def _afterwards(turn: Turn, node: PrefillNode, attempts: tuple[AttemptId, ...]) -> PrefillNode:
    """Say Failed or Sent, free the source, answer an abort: whatever has become due."""
    for attempt in attempts:
        node = prefill_end.settle(turn, prefill_end.fail(turn, node, attempt), attempt)
        node = prefill.complete(turn, node, attempt)
    return node


def _prefill_receives(turn: Turn, node: PrefillNode, event: Received) -> PrefillNode:
    envelope = event.envelope
    sender: Incarnation = envelope.sender
    if not is_current(turn, node.lives, envelope):
        return node
    match envelope.message:
        case Dispatch() as message:
            return prefill.on_dispatch(turn, node, message, event)
        case Commit() as message:
            return prefill_end.on_commit(turn, node, sender, message, event.num_known)
        case Abort() as message:
            return prefill_end.on_abort(turn, node, sender, message)
        case Cancel() as message:
            if not turn.ask("attempt-is-current", message.attempt, sender == message.attempt.gateway):
                return node
            return prefill_end.on_cancel(turn, node, message)
        case Floor() as message:
            return prefill_end.on_floor(turn, node, sender, message.counter)
    return _unread(turn, node, envelope)


def _step_gateway(turn: Turn, node: GatewayNode, event: Event) -> GatewayNode:
    match event:
        case Received():
            return _gateway_receives(turn, node, event)
        case Submit():
            return gateway.on_submit(turn, node, event)
        case TokensArrived():
            return gateway.on_tokens(turn, node, event)
        case ClientGone():
            return gateway.on_client_gone(turn, node, event.request)
        case DeadlinePassed():
            return gateway.on_deadline(turn, node, event.attempt)
        case Resend():
            return gateway.on_resend(turn, node, event.attempt)
        case PeerUp():
            return _meet(node, event)
        case PeerGone():
            return gateway.on_peer_gone(turn, node, event.peer)
        case PeerSilent():
            return gateway.on_peer_silent(turn, node, event.peer)
    raise _illegal(node, event)


def _gateway_receives(turn: Turn, node: GatewayNode, event: Received) -> GatewayNode:
    envelope = event.envelope
    if not is_current(turn, node.lives, envelope):
        return node
    match envelope.message:
        case Grant() as message:
            return gateway.on_grant(turn, node, envelope.sender, message)
        case Refused() as message:
            return gateway.on_refused(turn, node, envelope.sender, message)
        case Ended() as message:
            return gateway.on_ended(turn, node, envelope.sender, message)
    return _unread(turn, node, envelope)
