"""The scripts: each plays one course of events; its full output stands in ``conversations/``."""

from collections.abc import Callable

from kvfence.core.ids import RequestId
from kvfence.protocol.events import (
    ClientGone,
    DeadlinePassed,
    PagesSealed,
    PassBegan,
    PassEnded,
    Received,
    Verified,
)
from kvfence.protocol.messages import Abort, Cancel, Dispatch, Drained, EndReason, Offer
from tests.protocol.conversation import Conversation, attempt

Script = Callable[[], Conversation]
SCRIPTS: dict[str, Script] = {}


def script(function: Script) -> Script:
    """Register a script under its name."""
    SCRIPTS[function.__name__] = function
    return function


@script
def normal_flow() -> Conversation:
    """From submit to the last token: a prompt of 6 tokens, 4 to generate, pages of 4."""
    talk = Conversation()
    talk.grant(1)
    talk.compute(1)
    talk.end_batches(1)
    talk.deliver_all()
    talk.feed("D", Verified(attempt(1), (), digests_match=True))
    talk.tokens(1, 0)
    talk.decode_pass(1)
    talk.tokens(1, 1)
    talk.decode_pass(1, grow=1)
    talk.tokens(1, 2)
    talk.decode_pass(1, finished=((attempt(1), EndReason.LENGTH),))
    talk.tokens(1, 3)
    talk.deliver_all()
    return talk


@script
def first_token_is_the_last() -> Conversation:
    """One token is asked for: it came with the hand-off."""
    talk = Conversation()
    talk.grant(1, 4, 1)
    talk.compute(1)
    talk.end_batches(1)
    talk.deliver_all()
    talk.feed("D", Verified(attempt(1), (), digests_match=True, finished=EndReason.LENGTH))
    talk.tokens(1, 0)
    talk.deliver_all()
    return talk


@script
def refused_by_the_gateway() -> Conversation:
    """A prompt larger than prefill's pool never leaves the gateway."""
    talk = Conversation(prefill_pages=2)
    talk.submit("r1", 9, 4)
    return talk


@script
def refused_by_decode() -> Conversation:
    """Decode's queue is full: the client hears so."""
    talk = Conversation(offers_waiting_max=1)
    for number in range(1, 5):
        talk.submit(f"r{number}", 24, 4)
    talk.deliver_all()
    return talk


@script
def refused_by_prefill() -> Conversation:
    """A prompt that prefill's intake refuses is refused for good, with the client's reason."""
    talk = Conversation()
    talk.submit("r1", 6, 4)
    talk.deliver()
    talk.deliver()
    _, envelope = talk.post.pop()
    talk.feed("P", Received(envelope, EndReason.REFUSED_AT_INTAKE), "<- G Dispatch #1, refused at intake")
    talk.deliver_all()
    return talk


@script
def cancelled_while_offered() -> Conversation:
    """Before dispatch a cancel is carried out at once; the grant that crosses it dispatches nothing."""
    talk = Conversation()
    talk.submit("r1", 6, 4)
    talk.deliver()
    talk.feed("G", ClientGone(RequestId("r1")))
    talk.deliver_all()
    return talk


@script
def cancel_overtakes_offer() -> Conversation:
    """A cancel that arrives before its offer leaves a tombstone: the offer is answered Ended."""
    talk = Conversation()
    talk.submit("r1", 6, 4)
    talk.feed("G", ClientGone(RequestId("r1")))
    talk.take(Cancel)
    talk.take(Offer)
    talk.deliver_all()
    return talk


@script
def cancelled_after_dispatch() -> Conversation:
    """After dispatch the cancel goes to prefill; decode is left alone until the hand-off settles."""
    talk = Conversation()
    talk.grant(1, 16, 4)
    talk.feed("P", PassBegan(1, (attempt(1),)))
    talk.feed("P", PassEnded(1))
    talk.feed("P", PagesSealed(attempt(1), 2, tails_zeroed=True, digest="d"))
    talk.feed("G", ClientGone(RequestId("r1")))
    talk.deliver_all()
    talk.end_batches(1)
    talk.deliver_all()
    return talk


@script
def cancelled_after_sent() -> Conversation:
    """Prefill had finished when the client left: decode adopts, and the first token ends the attempt."""
    talk = Conversation()
    talk.grant(1)
    talk.compute(1)
    talk.end_batches(1)
    talk.feed("G", ClientGone(RequestId("r1")))
    talk.deliver_all()
    talk.feed("D", Verified(attempt(1), (), digests_match=True))
    talk.tokens(1, 0)
    talk.deliver_all()
    return talk


@script
def cancelled_in_a_pass() -> Conversation:
    """A cancel during a pass waits for its end; no token of that pass leaves."""
    talk = Conversation()
    talk.adopt(1)
    talk.feed("D", PassBegan(1, (attempt(1),)))
    talk.feed("G", ClientGone(RequestId("r1")))
    talk.deliver_all()
    talk.feed("D", PassEnded(1))
    talk.deliver_all()
    return talk


@script
def abort_overtakes_dispatch() -> Conversation:
    """Drained was said for an attempt prefill had never heard of: its dispatch then runs nothing."""
    talk = Conversation()
    talk.submit("r1", 6, 4)
    talk.deliver()
    talk.deliver()
    talk.feed("D", DeadlinePassed(attempt(1)))
    talk.take(Abort)
    talk.take(Drained)
    talk.take(Dispatch)
    talk.deliver_all()
    return talk


@script
def deadline_while_waiting() -> Conversation:
    """Whoever waits for pages at its deadline leaves the queue; the next in line is served."""
    talk = Conversation()
    talk.adopt(1, 16, 4)
    talk.submit("r2", 16, 4)
    talk.submit("r3", 4, 4)
    talk.deliver_all()
    talk.feed("D", DeadlinePassed(attempt(2)))
    talk.deliver_all()
    return talk


@script
def deadline_in_transfer() -> Conversation:
    """The deadline quarantines and frees nothing; Drained does, once the batch has ended."""
    talk = Conversation()
    talk.grant(1)
    talk.compute(1)
    talk.feed("D", DeadlinePassed(attempt(1)))
    talk.feed("D", DeadlinePassed(attempt(1)))
    talk.deliver_all()
    talk.end_batches(1)
    talk.deliver_all()
    return talk


@script
def deadline_while_verifying() -> Conversation:
    """What the verification says afterwards changes nothing."""
    talk = Conversation()
    talk.grant(1)
    talk.compute(1)
    talk.end_batches(1)
    talk.deliver_all()
    talk.feed("D", DeadlinePassed(attempt(1)))
    talk.feed("D", Verified(attempt(1), (), digests_match=True))
    talk.deliver_all()
    return talk


@script
def deadline_while_running() -> Conversation:
    """A running sequence ends; its pages were drained at adoption and are free."""
    talk = Conversation()
    talk.adopt(1)
    talk.feed("D", DeadlinePassed(attempt(1)))
    talk.deliver_all()
    return talk


@script
def deadline_at_the_gateway() -> Conversation:
    """The client hears of it at once; decode is told to end."""
    talk = Conversation()
    talk.grant(1)
    talk.feed("G", DeadlinePassed(attempt(1)))
    talk.deliver_all()
    return talk
