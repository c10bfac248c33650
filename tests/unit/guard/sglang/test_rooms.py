"""Rooms that several use, at once or one after the other: who is sent pages, and who is told of a refusal."""

import numpy as np
import pytest

from kvfence.guard.messages import RefusedAtPrefill
from kvfence.guard.sglang.at_prefill import AtPrefill
from kvfence.guard.sglang.sockets import MAGIC
from tests.unit.guard.sglang.parts import PAGES, KVPoll, Req
from tests.unit.guard.sglang.standin import Decode, Pair

LONG = "Input length (48 tokens) exceeds the maximum allowed length."
OFF = {"mode": "off"}


def chunk(pair: Pair, req: Req, pages: list[int], where: slice, *, last: bool) -> None:
    """Post some of a prompt's pages, as SGLang does a chunk at a time."""
    if last:
        pair.prefill.call("chunk-sent", lambda *_a, **_n: None, pair.prefill, req, last_chunk=True)
    given = (pair.prefill, req.bootstrap_room, pages, where, last)
    pair.prefill.call("pages-sent", pair.prefill._post, *given, aux_index=3)


def landed(side: Decode) -> list[bytes]:
    """Give what stands in a decode's pages."""
    return [raw.tobytes() for raw in side.memory.raw]


def offered_by_two(second: dict[str, str] | None = None) -> tuple[Pair, Decode, Req]:
    """Give a pair with another decode, which have both offered pages in one room."""
    pair, req = Pair(), Req(7, 12)
    other = Decode(300, 100, pair.prefill.network, second or {})
    pair.decode.submit(req)
    other.submit(Req(7, 12))
    for decode in (pair.decode, other):
        decode.turn()
    pair.prefill.submit(req)
    pair.prefill.pump()
    return pair, other, req


def given_up_between_chunks() -> tuple[Pair, Decode, bool]:
    """Let one of two decodes give up after the first chunk; was anything written to its pages by the second?"""
    pair, other, req = offered_by_two()
    chunk(pair, req, [3, 9], slice(0, 2), last=False)
    pair.prefill.begin()()
    pair.decode.update_status(7, KVPoll.FAILED)
    pair.settle()
    assert len(pair.decode.free) == PAGES, "prefill has said that nothing will be written"
    before = landed(pair.decode)
    chunk(pair, req, [4], slice(2, 3), last=True)
    pair.prefill.begin()()
    return pair, other, landed(pair.decode) != before


def test_a_decode_that_gave_up_is_written_nothing_while_another_is() -> None:
    """Its pages are somebody else's by then; the other decode of the room is sent the rest."""
    _, other, was_written = given_up_between_chunks()
    assert not was_written
    other.turn()
    assert len(other.running) == 1


def test_without_that_guard_the_next_chunk_lands_in_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As shipped, a room's receivers stay its receivers."""
    monkeypatch.setattr(AtPrefill, "_mute", lambda *_given, **_named: None)
    assert given_up_between_chunks()[2]


@pytest.mark.parametrize("is_muted", [True, False])
def test_an_unguarded_decode_in_a_guarded_room_is_sent_nothing(
    monkeypatch: pytest.MonkeyPatch, *, is_muted: bool
) -> None:
    """It named the room of another's request; that request is handed off as if it had not."""
    if not is_muted:
        monkeypatch.setattr(AtPrefill, "_mute", lambda *_given, **_named: None)
    pair, other, req = offered_by_two(OFF)
    before = landed(other)
    pair.prefill.send(req, [3, 9, 4])
    pair.prefill.begin()()
    pair.decode.turn()
    assert req.rid in pair.decode.running
    assert (landed(other) == before) == is_muted


def test_who_comes_while_a_room_is_sent_is_refused() -> None:
    """It would miss the first chunk, and would change which of the engine's threads sends the others."""
    pair, req = Pair(), Req(7, 12)
    pair.offer(req)
    chunk(pair, req, [3, 9], slice(0, 2), last=False)
    other = Decode(300, 100, pair.prefill.network, {})
    late = Req(7, 12)
    other.submit(late)
    other.turn()
    pair.prefill.pump()
    chunk(pair, req, [4], slice(2, 3), last=True)
    assert len(pair.prefill.transfer_infos[7]) == 1
    while pair.prefill.posted:
        pair.prefill.begin()()
    pair.decode.turn()
    assert req.rid in pair.decode.running
    other.turn()
    assert "another decode" in late.finished_reason.message


def told(side: Decode) -> int:
    """Give how many of the guard's messages wait for a decode."""
    return sum(1 for frames in side.inbox if frames[0] == MAGIC)


def test_a_refusal_goes_to_those_who_wait_for_it_alone() -> None:
    """Where a decode has offered pages in the room, no other hears the words that are for its client."""
    pair, req = Pair(), Req(7, 12)
    other = Decode(300, 100, pair.prefill.network, {})
    other.submit(Req(8, 12))
    other.turn()
    pair.decode.submit(req)
    pair.decode.turn()
    pair.prefill.pump()
    for side in (pair.decode, other):
        side.turn()
    pair.prefill.submit(Req(7, 12, refused=LONG))
    assert (told(pair.decode), told(other)) == (1, 0)
    pair.settle()
    assert pair.decode.answers[0].finished_reason.message == LONG


def test_a_refusal_of_an_earlier_request_does_not_end_a_later_one_in_its_room() -> None:
    """Words that name another attempt, or none where pages have been offered, are somebody else's."""
    pair, req = Pair(), Req(7, 12)
    pair.offer(req)
    pair.prefill.wiring.send(("127.0.0.1", 200), RefusedAtPrefill(7, 400, LONG))  # type: ignore[union-attr]
    pair.decode.turn()
    pair.prefill.send(req, [3, 9, 4])
    pair.prefill.begin()()
    pair.decode.turn()
    assert req.rid in pair.decode.running


@pytest.mark.parametrize(("early_s", "is_refused"), [(60.0, True), (0.0, False)])
def test_a_refusal_waits_for_its_room_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, early_s: float, *, is_refused: bool
) -> None:
    """It may come before decode's request does; whoever has the room much later has nothing of it."""
    monkeypatch.setattr("kvfence.guard.sglang.decode.EARLY_S", early_s)
    pair, first = Pair(), Req(6, 12)
    pair.hand_off(first, [3, 9, 4])
    pair.prefill.submit(Req(7, 12, refused=LONG))
    pair.decode.turn()
    later = Req(7, 12)
    if is_refused:
        pair.decode.submit(later)
    else:
        pair.hand_off(later, [1, 2, 5], at_prefill=later)
    assert bool(pair.decode.answers) == is_refused
    assert (later.rid in pair.decode.running) != is_refused


def test_ranks_that_have_not_all_heard_of_a_refusal_queue_the_same() -> None:
    """Whoever heard first lets the request in, as the others do; the vote on its transfer ends it on all."""
    pair, first, later = Pair(), Req(6, 12), Req(7, 12)
    pair.hand_off(first, [3, 9, 4])
    pair.prefill.submit(Req(7, 12, refused=LONG))
    pair.decode.turn()
    pair.decode.stand_in.others = [False]
    pair.decode.submit(later)
    assert not pair.decode.answers
    pair.decode.stand_in.others = []
    pair.decode.turn()
    pair.settle()
    assert later.finished_reason.message == LONG


class Event:
    """The device's: what was queued is done once somebody has waited for it."""

    def __init__(self, numbers: np.ndarray, pages: list[int]) -> None:
        self._numbers, self._pages = numbers, pages

    def synchronize(self) -> None:
        """Wait."""
        self._numbers[:] = self._pages


@pytest.mark.parametrize("name", ["indices_event", "wait_event"])
def test_page_numbers_that_a_device_has_yet_to_write_are_waited_for(name: str) -> None:
    """SGLang posts them with an event that its own worker waits for; the guard reads them before that."""
    pair, req = Pair(), Req(7, 12)
    pair.offer(req)
    pair.prefill.call("chunk-sent", lambda *_a, **_n: None, pair.prefill, req, last_chunk=True)
    numbers = np.full(3, PAGES + 7, np.int32)
    given = (pair.prefill, req.bootstrap_room, numbers, None, True)
    pair.prefill.call("pages-sent", pair.prefill._post, *given, aux_index=3, **{name: Event(numbers, [3, 9, 4])})
    pair.prefill.begin()()
    pair.decode.turn()
    assert req.rid in pair.decode.running


def test_who_takes_no_messages_is_not_waited_for() -> None:
    """A decode that is gone, with its socket full, is not told until it is heard again; then it is, by its offer."""
    pair, first, asked = Pair(), Req(6, 12), Req(7, 12)
    pair.hand_off(first, [3, 9, 4])
    state = pair.prefill.wiring.at_prefill.state  # type: ignore[union-attr]
    assert state is not None
    pair.prefill.stand_in.full.add("tcp://127.0.0.1:200")
    pair.prefill.submit(Req(7, 12, refused=LONG))
    assert state.refuse(RefusedAtPrefill(9, 400, LONG)) == []
    pair.prefill.stand_in.full.clear()
    pair.decode.submit(asked)
    pair.decode.turn()
    pair.settle()
    assert asked.finished_reason.message == LONG
    assert state.refuse(RefusedAtPrefill(9, 400, LONG)) != []


def test_a_room_that_the_engine_refuses_behind_the_door_is_closed_and_decode_told() -> None:
    """SGLang looks at its capacity while it queues a request: that refusal is final too, and the room is free."""
    pair, asked, long = Pair(), Req(7, 12), Req(7, 12)
    pair.decode.submit(asked)
    pair.decode.turn()
    pair.prefill.pump()
    pair.prefill.capacity = 11
    pair.prefill.submit(long)
    pair.settle()
    assert asked.finished_reason.message == long.finished_reason.message == "12 tokens > 11"
    assert len(pair.decode.free) == PAGES
    pair.prefill.capacity = 12
    again = Req(7, 12)
    pair.hand_off(again, [3, 9, 4])
    assert again.rid in pair.decode.running
