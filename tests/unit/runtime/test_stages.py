import gc

from kvfence.core.ids import AttemptId, Incarnation, RequestId
from kvfence.protocol.admission import Capacity
from kvfence.protocol.events import ClientGone, PeerUp, Received, Submit
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import Decision, Rules
from kvfence.protocol.messages import Ended, EndReason, Envelope, Grant
from kvfence.protocol.node import Lives
from kvfence.protocol.step import step
from kvfence.runtime.stages import Journeys, StageClock, refusal_of
from kvfence.wire.frames import Facts

GATEWAY, PREFILL, DECODE = Incarnation("a" * 32), Incarnation("b" * 32), Incarnation("c" * 32)
REQUEST = RequestId("r")
ATTEMPT = AttemptId(GATEWAY, 1)
SUBMIT = Submit(REQUEST, 20, 5, PREFILL, DECODE, 10**9)


class Watched:
    """A gateway node whose journeys are looked at; time goes on by one at every look at the clock."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.journeys = Journeys(self.clock)
        self.stepper = self.journeys.watch(step)
        self.node = GatewayNode(Lives(GATEWAY), Capacity(16, 64, 4, 5))
        for peer in (PREFILL, DECODE):
            self.feed(PeerUp(peer, writes=False))

    def clock(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def feed(self, event) -> None:  # type: ignore[no-untyped-def]
        node = self.stepper(Rules.all(), self.node, event).node
        assert isinstance(node, GatewayNode)
        self.node = node

    def say(self, message) -> None:  # type: ignore[no-untyped-def]
        self.feed(Received(Envelope(DECODE, GATEWAY, message)))


def test_the_gateways_steps_leave_their_marks() -> None:
    """Offered, dispatched and ended, in that order, with the workers and the reason."""
    watched = Watched()
    journey = watched.journeys.open(REQUEST, 0)
    watched.feed(SUBMIT)
    watched.say(Grant(ATTEMPT, 1, (0, 1), "layout"))
    assert journey.furthest == "queue"
    watched.say(Ended(ATTEMPT, EndReason.DIGEST_MISMATCH, 0))
    assert [name for name, _ in sorted(journey.marks.items(), key=lambda mark: mark[1])] == [
        "arrived",
        "offered",
        "dispatched",
        "ended",
    ]
    assert (journey.prefill, journey.decode, journey.ending) == ("b" * 8, "c" * 8, "digest_mismatch")


def test_a_preempted_request_keeps_its_first_marks_and_counts_its_attempts() -> None:
    """The second attempt's reservation does not move the first one's mark."""
    watched = Watched()
    journey = watched.journeys.open(REQUEST, 0)
    watched.feed(SUBMIT)
    first = journey.marks["offered"]
    watched.say(Ended(ATTEMPT, EndReason.PREEMPTED, 0))
    watched.feed(Submit(REQUEST, 20, 5, PREFILL, DECODE, 10**9, timer=ATTEMPT))
    assert journey.num_attempts == 2
    watched.say(Grant(AttemptId(GATEWAY, 2), 2, (0, 1), "layout"))
    assert journey.marks["offered"] == first
    assert "dispatched" in journey.marks
    assert "ended" not in journey.marks


def test_a_refusal_at_the_gateway_is_noted_without_an_attempt() -> None:
    """What does not fit has no attempt; its request has the refusal all the same."""
    watched = Watched()
    journey = watched.journeys.open(REQUEST, 0)
    watched.feed(Submit(REQUEST, 100, 5, PREFILL, DECODE, 10**9))
    assert (list(journey.refusals), journey.num_attempts) == (["fits@gateway"], 0)


def test_a_journey_is_forgotten_with_its_holder() -> None:
    """Nothing is kept of a request that nobody looks at, however many there were."""
    watched = Watched()
    journey = watched.journeys.open(REQUEST, 0)
    watched.feed(SUBMIT)
    assert len(watched.journeys._of_attempt) == 1
    del journey
    gc.collect()
    assert not watched.journeys._of_attempt
    assert not watched.journeys._of_request
    watched.feed(ClientGone(REQUEST))


def test_facts_are_ages_so_that_clocks_need_not_agree() -> None:
    """A mark of 2 ms ago there is one of 2 ms ago here; the first of a name stays."""
    clock = StageClock(lambda: 10_000_000)
    clock.learn(ATTEMPT, Facts({"sent": 2_000}))
    clock.learn(ATTEMPT, Facts({"sent": 1_000}))
    assert clock.facts(ATTEMPT) == Facts({"sent": 2_000})
    far = StageClock(lambda: 77_000_000_000)
    far.learn(ATTEMPT, clock.facts(ATTEMPT))
    assert far.facts(ATTEMPT) == Facts({"sent": 2_000})


def test_names_that_are_not_ours_are_dropped() -> None:
    """A peer cannot put words into the log, nor a mark of the gateway's own."""
    clock = StageClock(lambda: 10_000_000)
    clock.learn(ATTEMPT, Facts({"secret": 1, "arrived": 1, "sent": -5}, ("secret", "digest-matches@decode")))
    assert clock.facts(ATTEMPT) == Facts({}, ("digest-matches@decode",))


def test_a_worker_keeps_the_attempts_its_node_knows() -> None:
    """All others are forgotten at the next heartbeat."""
    clock = StageClock(lambda: 0)
    other = AttemptId(GATEWAY, 2)
    for attempt in (ATTEMPT, other):
        clock.learn(attempt, Facts({"sent": 0}))
    clock.keep({other})
    assert list(clock._told) == [other]


def test_guards_that_only_keep_pages_are_no_refusals() -> None:
    """A page kept from re-use is ordinary work; a digest that does not match is a refusal, obeyed or not."""
    assert refusal_of(Decision("hold-source", "prefill", ATTEMPT, holds=False, enforced=True)) == ""
    assert refusal_of(Decision("digest-matches", "decode", ATTEMPT, holds=True, enforced=True)) == ""
    for enforced in (True, False):
        decision = Decision("digest-matches", "decode", ATTEMPT, holds=False, enforced=enforced)
        assert refusal_of(decision) == "digest-matches@decode"
