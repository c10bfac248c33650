"""Everything is answered, whoever asks and whatever was lost; small cases that conversations do not show."""

from kvfence.core.ids import FORMER_LIFE, Incarnation, PassId, RequestId
from kvfence.core.manifest import Manifest
from kvfence.core.pages import PageState
from kvfence.protocol.decode_state import start_decode
from kvfence.protocol.events import (
    ClientGone,
    Event,
    FloorMoved,
    PassBegan,
    PassEnded,
    PeerGone,
    PeerUp,
    Received,
    Resend,
    Submit,
)
from kvfence.protocol.messages import (
    Abort,
    Cancel,
    Closed,
    Dispatch,
    Drained,
    Ended,
    EndReason,
    Envelope,
    Failed,
    Grant,
    Message,
    Offer,
    Refused,
    Sent,
)
from kvfence.protocol.properties import held_lots
from kvfence.protocol.transitions import DecodePhase, Fence, PrefillPhase
from tests.protocol.conversation import OTHER, SECOND, Conversation, D, G, P, attempt


def hear(talk: Conversation, name: str, sender: Incarnation, message: Message) -> list[Message]:
    """Feed one message and give what is sent in answer."""
    talk.post.clear()
    event: Event = Received(Envelope(sender, talk.nodes[name].lives.incarnation, message))
    talk.feed(name, event, "a message")
    return [envelope.message for _, envelope in talk.post]


def with_other(talk: Conversation, name: str, *, writes: bool = False) -> Conversation:
    """Introduce one more peer."""
    talk.feed(name, PeerUp(OTHER, writes=writes))
    return talk


def test_an_offer_without_tokens_is_refused() -> None:
    """A peer's offer of nothing is an answer, not a broken invariant."""
    talk = Conversation()
    assert hear(talk, "D", G, Offer(attempt(1), P, 0, 4, SECOND)) == [Refused(attempt(1), EndReason.REFUSED_AT_INTAKE)]
    assert hear(talk, "D", G, Offer(attempt(1), P, 4, 0, SECOND)) == [Refused(attempt(1), EndReason.REFUSED_AT_INTAKE)]


def test_a_dispatch_without_tokens_fails() -> None:
    """Decode hears that prefill will not run an empty prompt."""
    talk = Conversation()
    grant = Grant(attempt(1), 1, (0,), "L")
    assert hear(talk, "P", G, Dispatch(attempt(1), D, grant, 0, SECOND)) == [
        Failed(attempt(1), EndReason.REFUSED_AT_INTAKE)
    ]


def test_a_request_without_tokens_is_told_so() -> None:
    """The gateway's own client gets an end, not an exception."""
    talk = Conversation()
    talk.feed("G", Submit(RequestId("r1"), 0, 4, P, D, SECOND))
    assert "refused_at_intake" in talk.text
    assert talk.gateway.handoffs == {}


def test_an_attempt_of_another_gateway_is_stale() -> None:
    """A gateway offers and dispatches only what it minted."""
    talk = with_other(with_other(Conversation(), "D"), "P")
    assert hear(talk, "D", OTHER, Offer(attempt(1), P, 4, 4, SECOND)) == [Refused(attempt(1), EndReason.STALE)]
    grant = Grant(attempt(1), 1, (0,), "L")
    assert hear(talk, "P", OTHER, Dispatch(attempt(1), D, grant, 4, SECOND)) == [Failed(attempt(1), EndReason.STALE)]


def test_a_prefill_worker_that_was_not_placed_is_told_to_stop() -> None:
    """Sent or Failed from another prefill than the attempt's is answered Abort; the attempt goes on."""
    talk = with_other(Conversation(), "D", writes=True)
    talk.grant(1)
    manifest = Manifest(6, OTHER, 1, (0, 1), "L")
    assert hear(talk, "D", OTHER, Sent(attempt(1), 1, manifest)) == [Abort(attempt(1))]
    assert hear(talk, "D", OTHER, Failed(attempt(1), EndReason.MODEL_ERROR)) == [Abort(attempt(1))]
    assert hear(talk, "D", OTHER, Drained(attempt(1))) == []
    assert talk.decode.handoffs[attempt(1)].phase is DecodePhase.GRANTED


def test_sent_under_another_grant_changes_nothing() -> None:
    """A completion that names a serial we did not grant is not this attempt's."""
    talk = Conversation()
    talk.grant(1)
    assert hear(talk, "D", P, Sent(attempt(1), 99, Manifest(6, P, 1, (0, 1), "L"))) == []
    assert talk.decode.handoffs[attempt(1)].phase is DecodePhase.GRANTED


def test_fewer_pages_than_offered_are_not_adopted() -> None:
    """Decode compares with what the gateway offered: the incident's placeholder ends here."""
    talk = Conversation()
    talk.grant(1, 6)
    answers = hear(talk, "D", P, Sent(attempt(1), 1, Manifest(1, P, 1, (0,), "L")))
    assert answers == [Abort(attempt(1)), Ended(attempt(1), EndReason.COUNT_MISMATCH, 0)]


def test_another_layout_is_not_adopted() -> None:
    """Decode refuses pages in another layout, prefill a grant in one."""
    talk = Conversation()
    talk.grant(1, 6)
    answers = hear(talk, "D", P, Sent(attempt(1), 1, Manifest(6, P, 1, (0, 1), "M")))
    assert answers == [Abort(attempt(1)), Ended(attempt(1), EndReason.LAYOUT_MISMATCH, 0)]
    grant = Grant(attempt(2), 3, (0, 1), "M")
    assert hear(talk, "P", G, Dispatch(attempt(2), D, grant, 6, SECOND)) == [
        Failed(attempt(2), EndReason.LAYOUT_MISMATCH)
    ]


def test_a_message_for_another_kind_of_node_is_counted() -> None:
    """A Dispatch that reaches decode changes nothing and shows in the decisions."""
    talk = Conversation()
    before = talk.decode
    hear(talk, "D", G, Dispatch(attempt(1), D, Grant(attempt(1), 1, (0,), "L"), 4, SECOND))
    hear(talk, "P", G, Closed(attempt(1)))
    hear(talk, "G", D, Abort(attempt(1)))
    assert talk.decode == before
    assert [line for line in talk.lines[-3:] if "!attempt-is-current" in line] == talk.lines[-3:]


def test_a_former_life_is_not_heard() -> None:
    """A message to or from an incarnation that is not current is refused and counted."""
    talk = Conversation()
    for sender, receiver in ((OTHER, D), (G, OTHER)):
        talk.feed("D", Received(Envelope(sender, receiver, Offer(attempt(1), P, 4, 4, SECOND))), "a stranger")
        assert talk.lines[-1] == "D a stranger: !peer-is-current"


def test_a_floor_ends_what_still_waits_below_it() -> None:
    """Attempts waiting for pages below the floor leave the queue and are forgotten."""
    talk = Conversation()
    talk.grant(1, 24)
    talk.grant(2, 24)
    assert talk.decode.waiting == (attempt(2),)
    talk.feed("D", FloorMoved(G, 3))
    assert talk.decode.waiting == ()
    assert set(talk.decode.handoffs) == {attempt(1)}
    assert talk.decode.handoffs[attempt(1)].phase is DecodePhase.REVOKED


def test_closed_counts_from_its_own_gateway_only() -> None:
    """Another peer's Closed does not silence the end."""
    talk = with_other(Conversation(), "D")
    talk.adopt(1)
    hear(talk, "D", G, Cancel(attempt(1)))
    hear(talk, "D", OTHER, Closed(attempt(1)))
    assert not talk.decode.handoffs[attempt(1)].heard
    hear(talk, "D", G, Closed(attempt(1)))
    assert talk.decode.handoffs[attempt(1)].heard


def test_a_lost_cancel_is_said_again() -> None:
    """A client that left after dispatch: dispatch and cancel are both repeated until the attempt ends."""
    talk = Conversation()
    talk.grant(1)
    talk.feed("G", ClientGone(RequestId("r1")))
    talk.post.clear()
    talk.feed("G", Resend(attempt(1)))
    assert [type(envelope.message) for _, envelope in talk.post] == [Dispatch, Cancel]


def test_prefill_answers_no_dead_decode() -> None:
    """An abort whose asker died is not answered when the batch ends."""
    talk = Conversation()
    talk.grant(1)
    talk.compute(1)
    hear(talk, "P", D, Abort(attempt(1)))
    talk.feed("P", PeerGone(D, reaped=True))
    talk.post.clear()
    talk.end_batches(1)
    assert talk.post == []
    assert talk.prefill.handoffs[attempt(1)].phase is PrefillPhase.CLOSED
    assert talk.prefill.pool.num_free == 8


def test_a_mismatch_with_no_writer_left_frees_the_lot_at_once() -> None:
    """Where the last writer was reaped there is nobody to wait for: the pages do not stay lost."""
    talk = Conversation()
    talk.adopt(1)
    talk.feed("D", PeerGone(P, reaped=True))
    talk.decode_pass(1, bad=((attempt(1), (2,)),))
    assert talk.decode.pool.num_free == 8


def test_a_mismatch_where_the_receiver_checks_is_over_at_once() -> None:
    """With AT_RECEIPT nothing lands after the revoke, so that the lot is fenced in the same step."""
    talk = Conversation(fence=Fence.AT_RECEIPT)
    talk.adopt(1)
    talk.decode_pass(1, bad=((attempt(1), (0,)),))
    assert talk.decode.pool.num_free == 8


def test_a_mismatch_suspects_every_writer() -> None:
    """The lot is free only when each life that could write then has been reaped; a later one is no suspect."""
    talk = with_other(Conversation(), "D", writes=True)
    talk.adopt(1)
    talk.decode_pass(1, bad=((attempt(1), (2,)),))
    talk.feed("D", PeerUp(Incarnation("5" * 32), writes=True))
    talk.feed("D", PeerGone(P, reaped=True))
    assert talk.decode.pool.num_quarantined == 1
    talk.feed("D", PeerGone(OTHER, reaped=True))
    assert talk.decode.pool.num_quarantined == 0


def test_after_a_start_nothing_is_granted_before_the_fence() -> None:
    """Every page is quarantined until the writers of a former life are fenced, on each transport."""
    for fence in (Fence.PEER_EXIT, Fence.AT_RECEIPT):
        talk = Conversation(fence=fence)
        node = talk.decode
        talk.nodes["D"] = start_decode(talk.rules, node)
        hear(talk, "D", G, Offer(attempt(1), P, 4, 4, SECOND))
        assert talk.decode.waiting == (attempt(1),)
        talk.feed("D", PeerGone(FORMER_LIFE, reaped=False))
        assert talk.decode.waiting == (attempt(1),)
        talk.feed("D", PeerGone(FORMER_LIFE, reaped=True))
        assert talk.decode.handoffs[attempt(1)].phase is DecodePhase.GRANTED


def test_a_prompt_is_sent_in_bounded_batches() -> None:
    """At most batch_pages_max pages are outstanding; the next batch leaves when the last has ended."""
    talk = Conversation()
    talk.grant(1, 20)
    talk.compute(1)
    assert [pages for _, pages in talk.prefill.handoffs[attempt(1)].batches] == [2]
    talk.end_batches(1)
    assert talk.prefill.handoffs[attempt(1)].phase is PrefillPhase.SENT
    assert talk.text.count("Post") == 3


def test_a_failed_read_at_prefill_quarantines_its_own_pages() -> None:
    """A head that was wrong in a prefill pass: the request fails and the lot waits for the own engine's end."""
    talk = Conversation()
    talk.grant(1)
    talk.feed("P", PassBegan(PassId(1), (attempt(1),)))
    talk.feed("P", PassEnded(PassId(1), bad=((attempt(1), (0,)),)))
    assert talk.prefill.handoffs[attempt(1)].phase is PrefillPhase.FAILED
    assert talk.prefill.pool.num_quarantined == 2


def test_the_held_lots_name_every_state() -> None:
    """What the ledger is compared with: granted, sealed, adopted and quarantined lots."""
    talk = Conversation()
    talk.adopt(1)
    talk.grant(2)
    talk.compute(2)
    assert {state for state, _, pages in held_lots(talk.prefill) if pages} == {PageState.SEALED}
    assert {state for state, _, _ in held_lots(talk.decode)} == {PageState.ADOPTED, PageState.GRANTED}
    assert held_lots(talk.gateway) == []


def test_the_oldest_sequence_waits_for_pages_and_keeps_its_own() -> None:
    """Where nobody younger runs, the one that cannot grow sits the pass out; it is not ended."""
    talk = Conversation()
    talk.adopt(1, 8, 8)
    talk.grant(2, 16, 4)
    talk.decode_pass(1, grow=1)
    assert talk.lines[-1].endswith("RunPass id=1")
    assert talk.decode.handoffs[attempt(1)].phase is DecodePhase.RUNNING
    assert talk.decode.handoffs[attempt(1)].ending is None


def streaming() -> Conversation:
    """A gateway whose first attempt has delivered one token."""
    talk = Conversation()
    talk.adopt(1)
    if not talk.gateway.handoffs[attempt(1)].num_emitted:
        talk.tokens(1, 0)
    return talk


def test_a_resubmitted_request_is_placed_anew() -> None:
    """A stream whose prefill was replaced while it ran is preempted and goes on where its driver places it."""
    talk = streaming()
    talk.feed("G", PeerUp(OTHER, writes=False))
    talk.feed("G", PeerGone(P, reaped=True))
    sent = hear(talk, "G", D, Ended(attempt(1), EndReason.PREEMPTED, 1))
    offers = [message for message in sent if isinstance(message, Offer)]
    assert [offer.prefill for offer in offers] == [OTHER]


def test_an_end_said_twice_before_its_last_tokens_came_ends_the_stream() -> None:
    """Tokens lost for good do not leave a client waiting for its deadline."""
    talk = streaming()
    ended = Ended(attempt(1), EndReason.LENGTH, 3)
    assert hear(talk, "G", D, ended) == []
    assert hear(talk, "G", D, ended) == [Closed(attempt(1))]
    assert "worker_lost" in talk.text


def test_only_an_attempt_s_own_gateway_cancels_it() -> None:
    """A Cancel of another current peer changes nothing, at decode as at prefill."""
    talk = Conversation()
    talk.grant(1)
    for name in ("D", "P"):
        with_other(talk, name)
        node = talk.decode if name == "D" else talk.prefill
        before = node.handoffs[attempt(1)]
        assert hear(talk, name, OTHER, Cancel(attempt(1))) == []
        node = talk.decode if name == "D" else talk.prefill
        assert node.handoffs[attempt(1)] == before


def test_a_manifest_that_names_another_s_pages_is_refused() -> None:
    """Prefill vouches for what it wrote itself: an origin that is not the sender is a stamp that does not match."""
    talk = Conversation()
    talk.grant(1)
    granted = talk.decode.handoffs[attempt(1)].remote
    assert granted is not None
    manifest = Manifest(6, OTHER, 1, granted.pages, "L")
    sent = hear(talk, "D", P, Sent(attempt(1), granted.serial, manifest))
    assert Ended(attempt(1), EndReason.STAMP_MISMATCH, 0) in sent
    assert talk.decode.pool.num_quarantined == len(granted.pages)
