"""An event that is illegal for us raises LocalProtocolError and changes nothing."""

from collections.abc import Callable
from copy import deepcopy

import pytest

from kvfence.core.errors import LocalProtocolError
from kvfence.core.ids import BatchId, PassId, RequestId
from kvfence.protocol.decode_state import DecodeNode, start_decode
from kvfence.protocol.events import (
    BatchEnded,
    ClientGone,
    Event,
    FloorMoved,
    PagesSealed,
    PassBegan,
    PassEnded,
    SessionRebuilt,
    Submit,
    Verified,
)
from kvfence.protocol.guards import Rules
from kvfence.protocol.lots import new_pool
from kvfence.protocol.node import Lives
from kvfence.protocol.step import step
from kvfence.protocol.transitions import Fence
from tests.protocol.conversation import Conversation, D, G, P, attempt

ILLEGAL: list[tuple[str, Event]] = [
    ("G", FloorMoved(G, 1)),
    ("G", PassBegan(PassId(1), ())),
    ("G", Submit(RequestId("r2"), 6, 4, P, D, 1)),
    ("P", Verified(attempt(2), (), digests_match=True)),
    ("P", Submit(RequestId("r9"), 6, 4, P, D, 1)),
    ("P", PassBegan(PassId(2), (attempt(1),))),
    ("P", PassBegan(PassId(9), (attempt(1),))),
    ("P", PassBegan(PassId(9), (attempt(2),))),
    ("P", PassBegan(PassId(9), (attempt(7),))),
    ("P", PassEnded(PassId(2))),
    ("P", PagesSealed(attempt(2), 3, tails_zeroed=True, digest="d")),
    ("P", PagesSealed(attempt(2), 2, tails_zeroed=True, digest="d")),
    ("P", BatchEnded(attempt(2), BatchId(9), success=True, source_quiet=True)),
    ("P", BatchEnded(attempt(7), BatchId(1), success=True, source_quiet=True)),
    ("D", ClientGone(RequestId("r1"))),
    ("D", PassBegan(PassId(1), (attempt(1),))),
    ("D", PassBegan(PassId(9), (attempt(1),))),
    ("D", PassBegan(PassId(9), (attempt(2),))),
    ("D", PassBegan(PassId(9), (attempt(7),))),
    ("D", PassEnded(PassId(9))),
    ("D", SessionRebuilt("session-1")),
]


@pytest.fixture(scope="module")
def talk() -> Conversation:
    """One sequence in a pass at decode, one prompt with a posted batch at prefill."""
    talk = Conversation(fence=Fence.NEW_SESSION)
    talk.adopt(1)
    talk.grant(2)
    talk.compute(2)
    talk.feed("D", PassBegan(PassId(1), (attempt(1),)))
    return talk


@pytest.mark.parametrize(("name", "event"), ILLEGAL, ids=lambda value: getattr(type(value), "__name__", value))
def test_an_illegal_event_changes_nothing(talk: Conversation, name: str, event: Event) -> None:
    """The node that refused an event is equal to itself before, and works on."""
    node = talk.nodes[name]
    before = deepcopy(node)
    with pytest.raises(LocalProtocolError):
        step(Rules.all(), node, event)
    assert node == before


def test_no_step_changes_the_node_it_was_given() -> None:
    """Every step of a whole conversation leaves its input as it was."""
    talk = Conversation()
    feed: Callable[..., None] = talk.feed

    def checked(name: str, event: Event, label: str | None = None) -> None:
        given = talk.nodes[name]
        before = deepcopy(given)
        feed(name, event, label)
        assert given == before

    talk.feed = checked  # type: ignore[method-assign]
    talk.adopt(1)
    talk.decode_pass(1)
    talk.decode_pass(1, grow=1)
    talk.feed("G", ClientGone(RequestId("r1")))
    talk.deliver_all()


def test_a_transport_that_proves_nothing_is_refused_at_start() -> None:
    """Decode does not start where no event would ever end a quarantine."""
    talk = Conversation()
    node = DecodeNode(Lives(D), talk.decode.capacity, "L", Fence.NONE, new_pool(8))
    with pytest.raises(LocalProtocolError, match="refused at start"):
        start_decode(Rules.all(), node)
