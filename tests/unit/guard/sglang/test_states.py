"""Prefill's and decode's memory of hand-offs, over real bytes and without an engine."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from kvfence.core.errors import SettingsError
from kvfence.guard.handoff import Limits
from kvfence.guard.messages import RefusedAtPrefill
from kvfence.guard.sglang.decode import DecodeState, Refusal, Reserved
from kvfence.guard.sglang.memory import PageMemory
from kvfence.guard.sglang.prefill import REFUSALS_MAX, PrefillState
from tests.unit.guard.sglang.parts import BESIDE, ITEM, PAGES, ROWS, Memory

SENT_ROW, LANDED_ROW = 3, 1
SESSION = "127.0.0.1:9000"
ROOM, ENDPOINT = 77, ("127.0.0.1", 4000)


class Side(Memory):
    """One role's buffers, which the guard reads by address as it does the engine's."""

    @property
    def memory(self) -> PageMemory:
        """Give them as the guard sees them."""
        return PageMemory(self.args)

    def copy_to(self, other: "Side", source: np.ndarray, target: np.ndarray) -> None:
        """Move pages as a transfer does."""
        for mine, theirs in zip(self.raw, other.raw, strict=True):
            theirs.reshape(PAGES, ITEM)[target] = mine.reshape(PAGES, ITEM)[source]
        other.beside.reshape(ROWS, BESIDE)[LANDED_ROW] = self.beside.reshape(ROWS, BESIDE)[SENT_ROW]


@pytest.fixture
def pair(place: str) -> tuple[Side, PrefillState, Side, DecodeState]:
    """Two roles with the same layout and other bytes, in host memory or what is taken for a device's."""
    prefill, decode = Side(1), Side(2)
    return (
        prefill,
        PrefillState(prefill.memory, Limits(64, 64), "enforce"),
        decode,
        DecodeState(decode.memory, Limits(64, 64), "enforce"),
    )


SOURCE, TARGET = np.array([3, 9, 4], dtype=np.int32), np.array([7, 0, 12], dtype=np.int32)


def hand_off(pair: tuple[Side, PrefillState, Side, DecodeState], sent: np.ndarray, num_tokens: int = 12) -> None:
    """Reserve, offer, send in two chunks, promise."""
    source, prefill, target, decode = pair
    decode.reserve(ROOM, Reserved("request", 12))
    offer = decode.offer(ROOM, TARGET, LANDED_ROW, 0)
    assert offer is not None
    assert prefill.meet(decode.hello, ENDPOINT, SESSION) is not None
    assert prefill.expect(offer, ENDPOINT, SESSION) is None
    for chunk in (sent[:1], sent[1:]):
        prefill.note_pages(ROOM, chunk, SENT_ROW)
    source.copy_to(target, sent, TARGET[: len(sent)])
    prefill.note_tokens(ROOM, num_tokens)
    promise = prefill.promise(ROOM, ENDPOINT)
    assert promise is not None
    decode.note_promise(promise)


def test_an_honest_hand_off_is_adopted(pair: tuple[Side, PrefillState, Side, DecodeState]) -> None:
    """Pages that were sent in chunks have the digest that decode finds in one piece; it is judged once."""
    hand_off(pair, SOURCE)
    judged = pair[3].judge(ROOM, enforced=True)
    assert judged is not None
    assert judged[0].holds
    assert judged[1]
    again = pair[3].judge(ROOM, enforced=True)
    assert again == (judged[0], False)


def test_a_placeholder_is_refused_by_its_count(pair: tuple[Side, PrefillState, Side, DecodeState]) -> None:
    """One token in one page, where three pages are reserved, is the incident; it is not adopted."""
    hand_off(pair, SOURCE[:1], num_tokens=1)
    judged = pair[3].judge(ROOM, enforced=True)
    assert judged is not None
    assert judged[0].decisions[-1].guard == "count-matches"
    assert "1 tokens in 1 pages" in judged[0].reason


def test_a_page_that_changed_on_the_way_is_refused_by_its_digest(
    pair: tuple[Side, PrefillState, Side, DecodeState],
) -> None:
    """A byte that is not what prefill read is found."""
    hand_off(pair, SOURCE)
    pair[2].raw[2].reshape(PAGES, ITEM)[12, 5] ^= 1
    judged = pair[3].judge(ROOM, enforced=True)
    assert judged is not None
    assert judged[0].decisions[-1].guard == "digest-matches"


def test_every_page_of_every_buffer_is_under_the_digest(place: str) -> None:
    """One bit, in any page of any buffer, at its begin, its end or between."""
    side = Side(1)
    memory = side.memory
    before = memory.digest_of(SOURCE, SENT_ROW)
    for raw, page, at in product(side.raw, SOURCE, (0, 13, ITEM - 1)):
        raw.reshape(PAGES, ITEM)[page, at] ^= 1
        assert memory.digest_of(SOURCE, SENT_ROW) != before
        raw.reshape(PAGES, ITEM)[page, at] ^= 1
    assert memory.digest_of(SOURCE, SENT_ROW) == before


def test_without_reading_pages_a_changed_one_is_adopted(
    pair: tuple[Side, PrefillState, Side, DecodeState], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest is what found it."""
    monkeypatch.setattr(PageMemory, "read", lambda memory, _pages: [b""] * memory.num_buffers)
    hand_off(pair, SOURCE)
    pair[2].raw[2].reshape(PAGES, ITEM)[12, 5] ^= 1
    judged = pair[3].judge(ROOM, enforced=True)
    assert judged is not None
    assert judged[0].holds


def test_a_host_and_a_device_refuse_each_other_by_the_names_of_their_digests(on_device: Callable[[], None]) -> None:
    """The same bytes have another digest at either, so that their layouts differ."""
    prefill, decode = Side(1), Side(2)
    enforces, observes = (PrefillState(prefill.memory, Limits(64, 64), mode) for mode in ("enforce", "observe"))
    on_device()
    at_decode = DecodeState(decode.memory, Limits(64, 64), "enforce")
    hand_off((prefill, observes, decode, at_decode), SOURCE)
    judged, offered = at_decode.judge(ROOM, enforced=True), at_decode.reserved(ROOM)
    assert judged is not None
    assert judged[0].decisions[-1].guard == "layout-agrees"
    assert offered is not None
    assert offered.offer is not None
    enforces.meet(at_decode.hello, ENDPOINT, SESSION)
    refused = enforces.expect(offered.offer, ENDPOINT, SESSION)
    assert refused is not None
    for reason in (judged[0].reason, refused.message):
        assert "xxh3_128, decode as" in reason
        assert reason.endswith("odd_sums_128")


def test_without_a_promise_nothing_is_adopted(pair: tuple[Side, PrefillState, Side, DecodeState]) -> None:
    """A prefill without a guard, or a promise of another room, leaves the pages unproven."""
    decode = pair[3]
    decode.reserve(ROOM, Reserved("request", 12))
    decode.offer(ROOM, TARGET, LANDED_ROW, 0)
    judged = decode.judge(ROOM, enforced=True)
    assert judged is not None
    assert judged[0].decisions[-1].guard == "stamp-at-adopt"


def test_a_promise_of_an_earlier_attempt_in_the_same_room_is_refused(
    pair: tuple[Side, PrefillState, Side, DecodeState],
) -> None:
    """A room that a client uses twice has two attempts, and the first one's promise is not the second's."""
    hand_off(pair, SOURCE)
    prefill, decode = pair[1], pair[3]
    promise = prefill.promise(ROOM, ENDPOINT)
    assert promise is not None
    decode.forget(ROOM)
    decode.reserve(ROOM, Reserved("request", 12))
    decode.offer(ROOM, TARGET, LANDED_ROW, 0)
    decode.note_promise(promise)
    judged = decode.judge(ROOM, enforced=True)
    assert judged is not None
    assert judged[0].decisions[-1].guard == "attempt-is-current"


def test_a_refused_room_is_told_to_who_asks_late(pair: tuple[Side, PrefillState, Side, DecodeState]) -> None:
    """A decode that offers pages for a room that prefill has refused hears so at once."""
    _, prefill, _, decode = pair
    refused = RefusedAtPrefill(ROOM, 400, "too long")
    assert prefill.refuse(refused) == []
    decode.reserve(ROOM, Reserved("request", 12))
    offer = decode.offer(ROOM, TARGET, LANDED_ROW, 0)
    assert offer is not None
    told = prefill.expect(offer, ENDPOINT, SESSION)
    assert told == replace(refused, attempt=offer.attempt)
    assert not decode.note_refused(refused, is_here=True), "who has offered is told by name"
    assert decode.refusal(ROOM) is None
    assert decode.note_refused(told, is_here=True)
    assert decode.refusal(ROOM) == Refusal("too long", 400)


def test_a_room_that_was_refused_can_be_used_again(pair: tuple[Side, PrefillState, Side, DecodeState]) -> None:
    """A refusal ends with its request: the next one in the same room is handed off like any other."""
    _, prefill, _, decode = pair
    refused = RefusedAtPrefill(ROOM, 400, "too long")
    prefill.refuse(refused)
    decode.note_refused(refused, is_here=True)
    decode.forget(ROOM)
    assert decode.refusal(ROOM) is not None, "the engine ends a transfer before it tells its client why"
    decode.told(ROOM)
    assert decode.refusal(ROOM) is None
    prefill.admit(ROOM)
    hand_off(pair, SOURCE)
    judged = decode.judge(ROOM, enforced=True)
    assert judged is not None
    assert judged[0].holds


def test_a_rooms_receivers_are_those_of_its_first_pages(pair: tuple[Side, PrefillState, Side, DecodeState]) -> None:
    """Pages that the engine posts before it knows of a receiver are sent to nobody, and settle nothing."""
    _, prefill, _, decode = pair
    decode.reserve(ROOM, Reserved("request", 12))
    offer = decode.offer(ROOM, TARGET, LANDED_ROW, 0)
    assert offer is not None
    prefill.meet(decode.hello, ENDPOINT, SESSION)
    prefill.expect(offer, ENDPOINT, SESSION)
    assert prefill.receivers(ROOM, (), posting=True) == (frozenset(), {SESSION})
    assert prefill.receivers(ROOM, (SESSION, "other"), posting=False)[0] == {SESSION, "other"}
    assert prefill.receivers(ROOM, (SESSION,), posting=True)[0] == {SESSION}
    assert prefill.receivers(ROOM, (SESSION, "other"), posting=True)[0] == {SESSION}


def test_every_decode_with_a_guard_is_told(pair: tuple[Side, PrefillState, Side, DecodeState]) -> None:
    """A refusal goes to all that have said hello, since the room's own decode may not have asked yet."""
    _, prefill, _, decode = pair
    prefill.meet(decode.hello, ENDPOINT, SESSION)
    prefill.meet(decode.hello, ENDPOINT, SESSION)
    assert prefill.refuse(RefusedAtPrefill(ROOM, 400, "too long")) == [
        (ENDPOINT, RefusedAtPrefill(ROOM, 400, "too long"))
    ]


def test_a_decode_of_another_version_is_sent_nothing(pair: tuple[Side, PrefillState, Side, DecodeState]) -> None:
    """Whoever speaks another version, or has not said hello, is not expected, so that no page goes there."""
    _, prefill, _, decode = pair
    decode.reserve(ROOM, Reserved("request", 12))
    offer = decode.offer(ROOM, TARGET, LANDED_ROW, 0)
    assert offer is not None
    prefill.expect(offer, ENDPOINT, SESSION)
    assert not prefill.is_expected(ROOM)
    assert prefill.meet(replace(decode.hello, version=99), ENDPOINT, SESSION) is None
    prefill.expect(offer, ENDPOINT, SESSION)
    assert not prefill.is_expected(ROOM)


def test_a_write_that_failed_is_remembered_for_as_long_as_its_session(
    pair: tuple[Side, PrefillState, Side, DecodeState],
) -> None:
    """Another hello in the same session changes nothing, a new one ends the doubts; a former life is not known."""
    _, prefill, _, decode = pair
    decode.reserve(ROOM, Reserved("request", 12))
    offer = decode.offer(ROOM, TARGET, LANDED_ROW, 0)
    assert offer is not None
    prefill.meet(decode.hello, ENDPOINT, SESSION)
    assert prefill.is_unsure(offer.attempt, ENDPOINT), "this life was not asked for it"
    prefill.expect(offer, ENDPOINT, SESSION)
    assert not prefill.is_unsure(offer.attempt, ENDPOINT)
    prefill.note_failed(SESSION)
    prefill.meet(decode.hello, ENDPOINT, SESSION)
    assert prefill.is_unsure(offer.attempt, ENDPOINT)
    prefill.meet(decode.hello, ENDPOINT, "127.0.0.1:9001")
    assert not prefill.is_unsure(offer.attempt, ENDPOINT)


def test_remembered_refusals_are_bounded(pair: tuple[Side, PrefillState, Side, DecodeState]) -> None:
    """A client that sends refused prompts for ever fills no memory; the oldest is forgotten."""
    decode = pair[3]
    for room in range(REFUSALS_MAX + 10):
        decode.refuse(room, Refusal("too long", 400))
    assert decode.refusal(0) is None
    assert decode.refusal(REFUSALS_MAX + 9) is not None


def test_a_kind_of_page_that_is_not_covered_does_not_start() -> None:
    """State that the digest would leave out is an error at the start, by its name."""
    args = Side(3).args
    args.state_types = ["MAMBA"]
    with pytest.raises(SettingsError, match="MAMBA"):
        PageMemory(args)


def test_what_travels_beside_the_pages_is_on_the_host_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting puts the first token on the device, where it would be read as host memory."""
    monkeypatch.setenv("SGLANG_MOONCAKE_CUSTOM_MEM_POOL", "INTRA_NODE_NVLINK")
    with pytest.raises(SettingsError, match="INTRA_NODE_NVLINK"):
        PageMemory(Side(3).args, "cuda")
    assert PageMemory(Side(3).args, "cpu")


def test_pages_that_may_land_in_host_copies_do_not_start() -> None:
    """Prefill would write where the digest does not look."""
    args = Side(3).args
    args.host_kv_data_ptrs = [1]
    with pytest.raises(SettingsError, match="host copies"):
        PageMemory(args)


def test_another_layout_has_another_name() -> None:
    """What the pair compares differs where a page's bytes do."""
    assert Side(1).memory.layout != Side(1, item=64).memory.layout
