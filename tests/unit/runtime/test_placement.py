"""What the gateway counts against a worker when it places an attempt."""

from kvfence.core.ids import AttemptId, Incarnation, RequestId
from kvfence.protocol.admission import Capacity
from kvfence.protocol.handoff import GatewayHandoff
from kvfence.protocol.routing import Placement
from kvfence.protocol.transitions import GatewayPhase
from kvfence.runtime.placement import Peer, place_on

CAPACITY = Capacity(page_size=16, context_tokens=512, prefill_pages=32, decode_pages=33)
P1, P2, D1, D2 = (Incarnation(name) for name in ("p1", "p2", "d1", "d2"))


def peers(**changes: Peer) -> list[Peer]:
    """Two workers of each role."""
    usual = {"p1": Peer(P1, "prefill", 32), "p2": Peer(P2, "prefill", 32)}
    usual |= {"d1": Peer(D1, "decode", 33), "d2": Peer(D2, "decode", 33)}
    return list((usual | changes).values())


def handoff(number: int, phase: GatewayPhase, num_tokens: int = 100, num_emitted: int = 0) -> GatewayHandoff:
    """An open attempt on the first pair."""
    attempt = AttemptId(Incarnation("g"), number)
    request = RequestId(str(number))
    return GatewayHandoff(attempt, request, P1, D1, num_tokens, 50, 0, attempt, phase=phase, num_emitted=num_emitted)


def test_open_attempts_count_at_once() -> None:
    """An attempt that was placed a moment ago, of which no heartbeat can tell, sends the next one elsewhere."""
    assert place_on(peers(), [], CAPACITY, 20) == Placement(P1, D1)
    assert place_on(peers(), [handoff(1, GatewayPhase.OFFERED)], CAPACITY, 20) == Placement(P2, D2)


def test_prefill_is_free_of_what_it_handed_over() -> None:
    """A sequence that streams takes pages of decode, by what it has grown, and none of prefill."""
    streaming = [handoff(1, GatewayPhase.STREAMING, num_emitted=40)]
    assert place_on(peers(), streaming, CAPACITY, 20) == Placement(P1, D2)


def test_quarantined_pages_are_no_room() -> None:
    """As the last heartbeat told."""
    assert place_on(peers(d1=Peer(D1, "decode", 33, 5)), [], CAPACITY, 20) == Placement(P1, D2)


def test_a_silent_worker_gets_nothing_and_its_role_may_have_no_other() -> None:
    """Without a healthy worker of each role there is no place."""
    silent = Peer(P1, "prefill", 32, healthy=False)
    assert place_on(peers(p1=silent), [], CAPACITY, 20) == Placement(P2, D1)
    gone = Peer(P2, "prefill", 32, healthy=False)
    assert place_on(peers(p1=silent, p2=gone), [], CAPACITY, 20) is None


def test_where_nobody_has_room_the_shortest_queue_takes_it() -> None:
    """A prompt that must wait waits where fewest prompt tokens wait before it."""
    full = [handoff(number, GatewayPhase.STREAMING, 250) for number in (1, 2)]
    waiting = [*full, handoff(3, GatewayPhase.OFFERED, 300)]
    small = Peer(D2, "decode", 10)
    assert place_on(peers(d2=small), waiting, CAPACITY, 300) == Placement(P2, D2)
