"""More scripts: deaths, mismatches, failed batches, messages lost and repeated, floors."""

from kvfence.core.ids import Incarnation, RequestId
from kvfence.protocol.events import (
    BatchEnded,
    ClientGone,
    DeadlinePassed,
    FloorMoved,
    PeerGone,
    PeerSilent,
    Received,
    Resend,
    SessionRebuilt,
    Verified,
)
from kvfence.protocol.messages import Abort, Ended, EndReason, Envelope, Offer
from kvfence.protocol.transitions import Fence
from tests.protocol.conversation import Conversation, D, G, P, attempt
from tests.protocol.scripts import script


@script
def prefill_dies_and_is_reaped() -> Conversation:
    """On shared memory the reaped writer's death is the fence."""
    talk = Conversation()
    talk.grant(1)
    talk.compute(1)
    for name in "GD":
        talk.feed(name, PeerGone(P, reaped=True))
    talk.deliver_all()
    return talk


@script
def prefill_dies_and_is_reaped_later() -> Conversation:
    """Until it is reaped its pages stay quarantined."""
    talk = Conversation()
    talk.grant(1)
    talk.compute(1)
    talk.feed("D", PeerGone(P, reaped=False))
    talk.feed("D", DeadlinePassed(attempt(1)))
    talk.feed("D", PeerGone(P, reaped=True))
    talk.deliver_all()
    return talk


@script
def prefill_falls_silent() -> Conversation:
    """Its client is told at once, its pages wait for it; what it has handed over runs on. Then it is heard again."""
    talk = Conversation()
    talk.adopt(1)
    talk.grant(2)
    talk.compute(2)
    talk.feed("G", PeerSilent(P))
    talk.deliver()
    talk.decode_pass(1)
    talk.tokens(1, 1)
    assert talk.decode.pool.num_quarantined == 2
    talk.deliver_all()
    talk.end_batches(2)
    talk.deliver_all()
    assert talk.decode.pool.num_quarantined == 0
    assert attempt(1) in talk.gateway.handoffs
    return talk


@script
def decode_falls_silent_and_dies() -> Conversation:
    """The stream ends with an error while nobody knows whether decode lives; its death closes the attempt."""
    talk = Conversation()
    talk.adopt(1)
    talk.feed("G", PeerSilent(D))
    talk.feed("G", PeerSilent(D))
    talk.feed("G", PeerGone(D, reaped=True))
    assert talk.gateway.handoffs == {}
    return talk


@script
def prefill_dies_on_a_network() -> Conversation:
    """Where bytes outlive their sender its death is no fence; the rebuilt session is."""
    talk = Conversation(fence=Fence.NEW_SESSION)
    talk.grant(1)
    talk.compute(1)
    talk.feed("D", PeerGone(P, reaped=True))
    talk.rebuild("session-2")
    talk.deliver_all()
    return talk


@script
def session_rebuilt() -> Conversation:
    """A new receiving engine ends what was on its way; running sequences go on."""
    talk = Conversation(fence=Fence.NEW_SESSION)
    talk.adopt(1)
    talk.grant(2)
    talk.compute(2)
    talk.rebuild("session-2")
    talk.end_batches(2, success=False)
    talk.deliver_all()
    talk.feed("P", SessionRebuilt("own-2"))
    talk.decode_pass(1)
    return talk


@script
def decode_dies() -> Conversation:
    """Prefill stops and frees its source when its batch has ended; the gateway tells the client."""
    talk = Conversation()
    talk.grant(1)
    talk.compute(1)
    talk.feed("P", PeerGone(D, reaped=True))
    talk.feed("G", PeerGone(D, reaped=True))
    talk.feed("P", BatchEnded(attempt(1), 1, success=False, source_quiet=True))
    talk.feed("P", FloorMoved(G, 2))
    return talk


@script
def gateway_dies() -> Conversation:
    """Its attempts are over everywhere, and nothing of them is remembered."""
    talk = Conversation()
    talk.adopt(1)
    talk.grant(2)
    talk.feed("D", PeerGone(G, reaped=True))
    talk.feed("P", PeerGone(G, reaped=True))
    talk.post = [posted for posted in talk.post if posted[1].receiver != G]
    talk.deliver_all()
    assert talk.decode.handoffs == {}
    assert talk.prefill.handoffs == {}
    return talk


@script
def preempted_and_resubmitted() -> Conversation:
    """The youngest gives way to the oldest and goes on as a new attempt, under its first deadline."""
    talk = Conversation(decode_pages=6)
    talk.adopt(1, 8, 8)
    talk.adopt(2, 7, 4)
    talk.decode_pass(1, 2)
    talk.tokens(1, 1)
    talk.tokens(2, 1)
    talk.decode_pass(1, grow=2)
    talk.tokens(1, 2)
    talk.deliver_all()
    talk.feed("G", DeadlinePassed(attempt(2)))
    talk.deliver_all()
    return talk


@script
def mismatch_at_adopt() -> Conversation:
    """A page without the promised stamp proves that some writer is active: *drained* does not free it."""
    talk = Conversation()
    talk.grant(1)
    talk.compute(1)
    talk.end_batches(1)
    talk.deliver_all()
    talk.feed("D", Verified(attempt(1), (1,), digests_match=False))
    talk.deliver_all()
    talk.feed("D", PeerGone(P, reaped=True))
    return talk


@script
def mismatch_at_read() -> Conversation:
    """No token of the pass leaves; the lot is quarantined with every writer as suspect, the others are free."""
    talk = Conversation()
    talk.adopt(1)
    talk.decode_pass(1, bad=((attempt(1), (2,)),))
    talk.deliver_all()
    talk.feed("D", PeerGone(P, reaped=True))
    return talk


@script
def batch_fails() -> Conversation:
    """After a batch that failed prefill says *unknown*, also when it is asked again below the floor."""
    talk = Conversation()
    talk.grant(1)
    talk.compute(1)
    talk.end_batches(1, success=False)
    talk.deliver()
    talk.take(Abort)
    talk.lose(-1)
    talk.take(Ended)
    talk.deliver_all()
    talk.feed("P", FloorMoved(G, 2))
    talk.feed("D", Resend(attempt(1)))
    talk.deliver_all()
    talk.feed("D", DeadlinePassed(attempt(1)))
    talk.feed("D", PeerGone(P, reaped=True))
    return talk


@script
def everything_twice() -> Conversation:
    """Each message arrives twice; the answers are repeated, nothing happens twice."""
    talk = Conversation()
    talk.submit("r1", 6, 2)
    _twice(talk)
    talk.compute(1)
    talk.end_batches(1)
    _twice(talk)
    talk.feed("D", Verified(attempt(1), (), digests_match=True))
    _twice(talk)
    talk.tokens(1, 0)
    talk.tokens(1, 0)
    talk.decode_pass(1, finished=((attempt(1), EndReason.LENGTH),))
    talk.tokens(1, 1)
    _twice(talk)
    return talk


def _twice(talk: Conversation) -> None:
    for _ in range(40):
        if not talk.post:
            return
        talk.deliver(keep=True)
        talk.deliver()


@script
def everything_lost_once() -> Conversation:
    """Each message is lost once and said again."""
    talk = Conversation()
    talk.submit("r1", 6, 1)
    _again(talk, "G")
    talk.deliver()
    _again(talk, "G")
    talk.compute(1)
    talk.end_batches(1)
    _again(talk, "P")
    talk.feed("D", Verified(attempt(1), (), digests_match=True, finished=EndReason.LENGTH))
    talk.tokens(1, 0)
    talk.lose()
    talk.feed("P", Resend(attempt(1)))
    talk.deliver_all()
    talk.feed("D", Resend(attempt(1)))
    return talk


def _again(talk: Conversation, speaker: str) -> None:
    talk.lose()
    talk.feed(speaker, Resend(attempt(1)))
    talk.deliver()


@script
def floors_and_tombstones() -> Conversation:
    """Below the floor attempts are refused and tombstones forgotten; a floor never moves back."""
    talk = Conversation()
    talk.adopt(1, 6, 4)
    talk.feed("G", ClientGone(RequestId("r1")))
    talk.deliver_all()
    for name in "PD":
        talk.feed(name, FloorMoved(G, 2))
        talk.feed(name, FloorMoved(G, 1))
    assert talk.decode.handoffs == {}
    assert talk.prefill.handoffs == {}
    talk.lines.append("  late: an offer and an abort of the attempt below the floor")
    talk.feed("D", _late(Offer(attempt(1), P, 6, 4, 1), G, D))
    talk.feed("P", _late(Abort(attempt(1)), D, P))
    talk.deliver_all()
    return talk


def _late(message: Offer | Abort, sender: str, receiver: str) -> Received:
    return Received(Envelope(Incarnation(sender), Incarnation(receiver), message))


@script
def tokens_are_lost() -> Conversation:
    """A gap in the stream ends the request: its client is told, decode stops."""
    talk = Conversation()
    talk.adopt(1)
    talk.decode_pass(1)
    talk.decode_pass(1, grow=1)
    talk.tokens(1, 2)
    talk.deliver_all()
    return talk
