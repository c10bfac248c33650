"""The driver loop: order of events, page moves into the ledger, nothing half done."""

from collections.abc import Iterable

import pytest

from kvfence.core.errors import LocalProtocolError, OwnershipError
from kvfence.core.ids import FORMER_LIFE, AttemptId, Incarnation, PassId
from kvfence.core.pages import PageState
from kvfence.driver.ledger import ListLedger
from kvfence.driver.loop import NodeLoop
from kvfence.protocol.admission import Capacity
from kvfence.protocol.commands import Command, Move, Send
from kvfence.protocol.decode_state import DecodeNode, start_decode
from kvfence.protocol.events import Event, PassEnded, PeerGone, PeerUp, Received
from kvfence.protocol.guards import Rules
from kvfence.protocol.lots import new_pool
from kvfence.protocol.messages import Envelope, Grant, Offer
from kvfence.protocol.node import Lives
from kvfence.protocol.step import step
from kvfence.protocol.transitions import Fence, PageMove

ME, PREFILL, GATEWAY = (Incarnation(letter * 32) for letter in "dpg")


class Driven:
    """A decode node in a loop, and what it was told to do."""

    def __init__(self, *, ledger_pages: int = 8) -> None:
        node = DecodeNode(Lives(ME), Capacity(16, 64, 8, 8), "layout", Fence.PEER_EXIT, new_pool(8))
        self.commands: list[Command] = []
        rules = Rules.all()
        ledger = ListLedger(ledger_pages, PageState.QUARANTINED)
        self.loop = NodeLoop(rules, start_decode(rules, node), ledger, self.execute, step)

    def execute(self, command: Command) -> Iterable[Event] | None:
        """Note a command."""
        self.commands.append(command)
        return None

    def offer(self) -> None:
        """Introduce the peers, fence the former life and offer one attempt."""
        for peer, writes in ((PREFILL, True), (GATEWAY, False)):
            self.loop.feed(PeerUp(peer, writes))
        self.loop.feed(PeerGone(FORMER_LIFE, reaped=True))
        offer = Offer(AttemptId(GATEWAY, 1), PREFILL, 20, 4, 10**9)
        self.loop.feed(Received(Envelope(GATEWAY, ME, offer)))


def test_moves_reach_the_ledger_before_anyone_is_told() -> None:
    """A grant is in the ledger when its message goes out."""
    driven = Driven()
    driven.offer()
    sends = [c for c in driven.commands if isinstance(c, Send) and isinstance(c.message, Grant)]
    assert len(sends) == 1
    assert driven.loop.ledger is not None
    assert driven.loop.ledger.count(PageState.GRANTED) == 3
    kinds = [type(c) for c in driven.commands]
    assert kinds.index(Move) < kinds.index(Send)


def test_an_illegal_event_changes_nothing() -> None:
    """A bug in the driver is an error, and the node stays as it was."""
    driven = Driven()
    before = driven.loop.node
    with pytest.raises(LocalProtocolError):
        driven.loop.feed(PassEnded(PassId(9)))
    assert driven.loop.node is before
    driven.offer()


def test_a_ledger_that_disagrees_stops_the_loop() -> None:
    """A move the ledger refuses is not carried out quietly."""
    driven = Driven()
    assert driven.loop.ledger is not None
    driven.loop.ledger.apply(Move(PageMove.FENCE, 0, tuple(range(8))))
    with pytest.raises(OwnershipError):
        driven.offer()


def test_rewriters_see_every_event_and_answers_are_counted() -> None:
    """Fault injection changes events in front of the node; decisions are counted by answer."""
    driven = Driven()
    seen: list[str] = []

    def watch(event: Event) -> Event:
        seen.append(type(event).__name__)
        return event

    driven.loop.rewrites.append(watch)
    driven.offer()
    assert seen == ["PeerUp", "PeerUp", "PeerGone", "Received"]
    assert driven.loop.decisions[("fits", "decode", "pass")] == 1
