"""The guard's hooks around an SGLang pair's calls: what each keeps from happening, and what happens without it."""

from collections import deque
from itertools import count
from types import SimpleNamespace

import pytest

from kvfence.core.errors import SettingsError
from kvfence.guard import settings
from kvfence.guard.sglang.points import POINTS
from kvfence.guard.sglang.wiring import Wiring
from tests.unit.guard.sglang.parts import KEY, PAGES, KVPoll, Memory, Req
from tests.unit.guard.sglang.standin import Pair

LONG, STUB = "Input length (48 tokens) exceeds the maximum allowed length.", [0]
OFF = {"mode": "off"}


def new_sessions(monkeypatch: pytest.MonkeyPatch, ended: list[str] | None = None, *, ends: bool = True) -> None:
    """Make decode's sessions new as Mooncake does; where they do not end, the old ones go on taking writes."""
    seen = ended if ended is not None else []
    monkeypatch.setattr("kvfence.guard.sglang.session.rebuild", lambda *_: f"session {len(seen)}")
    monkeypatch.setattr("kvfence.guard.sglang.session.has_ended", lambda one: bool(ends and not seen.append(one)))


def test_every_point_has_a_hook() -> None:
    """What is named is wired: a point without its function would end an engine's start."""
    wiring = Wiring(settings.load({"KVFENCE_GUARD_KEY": KEY}))
    assert [wiring.hook(point.key) for point in POINTS]


def test_an_honest_request_is_handed_off_and_its_pages_come_back() -> None:
    """Pages are verified, adopted, used and given back; nothing is held and nobody is refused."""
    pair, req = Pair(), Req(7, 12)
    pair.hand_off(req, [3, 9, 4])
    assert req.rid in pair.decode.running
    assert not pair.decode.answers
    pair.decode.finish(req)
    assert len(pair.decode.free) == PAGES
    assert not pair.decode.is_holding


def test_the_incident_is_a_400_at_both_roles() -> None:
    """A refused prompt is not sent as a stub: decode's client has the engine's own words, and the pages come back."""
    pair, asked, stub = Pair(), Req(7, 12), Req(7, 12, refused=LONG)
    pair.decode.submit(asked)
    pair.decode.turn()
    pair.prefill.pump()
    pair.decode.turn()
    pair.prefill.submit(stub)
    pair.settle()
    assert not pair.prefill.queue
    assert [req.finished_reason.message for req in pair.decode.answers] == [LONG]
    assert pair.decode.answers[0].finished_reason.status_code == 400
    assert [req.finished_reason.status_code for req in pair.prefill.answers] == [400]
    assert len(pair.decode.free) == PAGES


def of_no_session(room: int) -> Req:
    """Give a request that SGLang refuses while it makes it, and makes without its room."""
    req = Req(room, 12, refused="session id nobody does not exist")
    req.is_of_no_session = True
    return req


def test_a_refused_request_without_its_room_is_ended_at_both_roles() -> None:
    """SGLang drops the room of a request whose session is not there: who waits in that room is told all the same."""
    pair, asked = Pair(), Req(7, 12)
    pair.offer(asked, at_prefill=of_no_session(7))
    pair.settle()
    assert not pair.prefill.queue
    assert [req.finished_reason.message for req in pair.decode.answers] == ["session id nobody does not exist"]
    assert len(pair.decode.free) == PAGES
    pair.decode.submit(of_no_session(8))
    assert not pair.decode.waiting
    assert [req.finished_reason.status_code for req in pair.decode.answers] == [400, 400]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_without_the_question_it_waits_in_a_room_that_nobody_comes_to(role: str) -> None:
    """As shipped: it stands in the queue until a time-out, and nobody knows whom to tell."""
    pair = Pair(**{role: {"without": {"request-read"}}})
    side = getattr(pair, role)
    side.submit(of_no_session(7))
    assert not side.answers
    assert side.queue or side.waiting


def test_without_both_guards_the_incident_is_an_answer_from_pages_that_nobody_wrote() -> None:
    """As shipped, the stub's one page is enough for decode to go on with three."""
    pair, asked, stub = Pair(prefill=OFF, decode=OFF), Req(7, 12), Req(7, 12, refused=LONG)
    pair.hand_off(asked, STUB, at_prefill=stub)
    assert asked.rid in pair.decode.running


def test_with_prefills_door_open_the_count_still_refuses_the_stub() -> None:
    """The promise says one token where three pages were reserved: no token leaves."""
    pair, asked = Pair(prefill={"without": {"prefill-admits"}}), Req(7, 12)
    pair.hand_off(asked, STUB, at_prefill=Req(7, 12, refused=LONG))
    assert not pair.decode.running
    assert "prefill sent 1 tokens in 1 pages" in pair.decode.answers[0].finished_reason.message
    pair.settle()
    assert len(pair.decode.free) == PAGES


def test_without_the_comparison_the_stub_is_adopted() -> None:
    """The guard at adoption is what refused it."""
    pair, asked = Pair({"without": {"prefill-admits"}}, {"without": {"receiver-polled"}}), Req(7, 12)
    pair.hand_off(asked, STUB, at_prefill=Req(7, 12, refused=LONG))
    assert asked.rid in pair.decode.running


def test_a_shortened_prompt_is_refused() -> None:
    """A sender that shortened the prompt by itself has fewer tokens than decode reserved."""
    pair, asked, short = Pair(), Req(7, 12), Req(7, 8)
    pair.hand_off(asked, [3, 9], at_prefill=short)
    refusal = pair.decode.answers[0].finished_reason
    assert "prefill sent 8 tokens in 2 pages, decode reserved 12 in 3" in refusal.message
    assert refusal.status_code in (400, 500, 503), "0.5.19 makes a 200 of every other"


def test_a_first_token_that_changed_on_the_way_is_refused() -> None:
    """What travels beside the pages is under the digest too."""
    pair, req = Pair(), Req(7, 12)
    pair.offer(req)
    pair.prefill.send(req, [3, 9, 4])
    pair.prefill.begin()()
    pair.decode.memory.beside[0] ^= 1
    pair.decode.turn()
    assert "not the bytes that prefill sent" in pair.decode.answers[0].finished_reason.message


def test_a_page_that_was_given_back_before_it_is_sent_ends_the_hand_off() -> None:
    """Prefill's allocator says that it is free: whoever has it next writes what would be sent."""
    pair, req = Pair(), Req(7, 12)
    pair.offer(req)
    pair.prefill.give_back([9])
    pair.prefill.send(req, [3, 9, 4])
    assert not pair.prefill.posted
    pair.settle()
    assert "given back before it was sent" in pair.decode.answers[0].finished_reason.message
    assert len(pair.decode.free) == PAGES


def test_pages_given_up_in_a_transfer_come_back_when_prefill_says_that_it_has_ended() -> None:
    """A client leaves while a write is under way: its pages are given to nobody before the write has landed."""
    pair, req = Pair(), Req(7, 12)
    pair.offer(req)
    pair.prefill.send(req, [3, 9, 4])
    land = pair.prefill.begin()
    pair.decode.queue[0][1].abort()
    pair.settle()
    assert len(pair.decode.free) == PAGES - 3
    assert pair.decode.is_holding, "the engine would take them for lost"
    land()
    pair.settle()
    pair.decode.wiring.at_decode.quarantine.held[0].asked_s = 0.0  # type: ignore[union-attr]
    pair.settle()
    assert len(pair.decode.free) == PAGES
    assert len(pair.decode.rows) == 4
    assert not pair.decode.is_holding


def test_without_the_quarantine_a_late_write_lands_in_anothers_pages() -> None:
    """As shipped, the next request has the pages that the given-up transfer is still writing."""
    pair, req, other = Pair(decode={"without": {"decode-releases"}}), Req(7, 60), Req(8, 60)
    pair.offer(req)
    pair.prefill.send(req, range(15))
    land = pair.prefill.begin()
    pair.decode.queue[0][1].abort()
    pair.settle()
    pair.offer(other)
    taken = set(pair.decode.queue[0][2])
    before = [raw.copy() for raw in pair.decode.memory.raw]
    land()
    changed = {at for at in range(PAGES) if (before[0].reshape(PAGES, -1)[at] != _page(pair, at)).any()}
    assert changed & taken


def _page(pair: Pair, at: int) -> object:
    return pair.decode.memory.raw[0].reshape(PAGES, -1)[at]


def test_a_request_that_comes_to_prefill_after_decode_gave_up_is_not_sent() -> None:
    """An abort that overtakes its request: the pages that it names belong to nobody who waits for it."""
    pair, req = Pair(), Req(7, 12)
    pair.decode.submit(req)
    pair.decode.turn()
    pair.prefill.pump()
    pair.decode.queue[0][1].abort()
    pair.settle()
    assert len(pair.decode.free) == PAGES, "prefill vouches that nothing will be written"
    pair.prefill.submit(req)
    pair.prefill.update_status(7, KVPoll.WAITING)
    pair.prefill.send(req, [3, 9, 4])
    assert not pair.prefill.posted
    assert pair.prefill.request_status[7] is KVPoll.FAILED


def test_a_write_that_failed_frees_nothing_until_the_session_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was posted and not acknowledged may land at any time; only a new session ends that."""
    pair, req = Pair(), Req(7, 12)
    rebuilt: list[str] = []
    new_sessions(monkeypatch, rebuilt)
    pair.offer(req)
    pair.prefill.outcome = -1
    pair.prefill.send(req, [3, 9, 4])
    pair.prefill.begin()()
    pair.decode.turn()
    assert len(pair.decode.free) == PAGES - 3
    pair.prefill.pump()
    assert not rebuilt
    pair.settle()
    assert rebuilt
    assert len(pair.decode.free) == PAGES


def test_a_new_life_of_prefill_does_not_vouch_for_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a dead prefill posted may land yet; its successor at the same address knows nothing of that."""
    pair, req = Pair(), Req(7, 12)
    new_sessions(monkeypatch, ends=False)
    pair.offer(req)
    pair.prefill.wiring.at_prefill.state._asked.clear()  # type: ignore[union-attr]
    pair.decode.queue[0][1].abort()
    pair.settle(6)
    assert len(pair.decode.free) == PAGES - 3


def test_a_session_that_still_answers_frees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new session that did not end the old one proves nothing."""
    pair, req = Pair(), Req(7, 12)
    new_sessions(monkeypatch, ends=False)
    pair.offer(req)
    pair.prefill.outcome = -1
    pair.prefill.send(req, [3, 9, 4])
    pair.prefill.begin()()
    pair.settle(6)
    assert len(pair.decode.free) == PAGES - 3


def test_pages_wait_for_every_session_that_they_may_have_been_offered_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first session lives on after a new one was made; that those after it ended proves nothing of it."""
    pair, req, lives, made = Pair(), Req(7, 12), {"0"}, count()
    monkeypatch.setattr("kvfence.guard.sglang.session.rebuild", lambda *_: str(next(made)))
    monkeypatch.setattr("kvfence.guard.sglang.session.has_ended", lambda one: one not in lives)
    monkeypatch.setattr("kvfence.guard.sglang.session.AGAIN_S", 0.0)
    pair.offer(req)
    pair.prefill.outcome = -1
    pair.prefill.send(req, [3, 9, 4])
    pair.prefill.begin()()
    pair.settle(4)
    assert next(made) > 1
    assert len(pair.decode.free) == PAGES - 3
    lives.clear()
    pair.settle()
    assert len(pair.decode.free) == PAGES


def test_bytes_that_are_not_those_that_were_sent_keep_their_pages_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mismatch proves a writer whom nobody knows, so that prefill's word is not enough."""
    pair, req = Pair(), Req(7, 12)
    new_sessions(monkeypatch, ends=False)
    pair.offer(req)
    pair.prefill.send(req, [3, 9, 4])
    pair.prefill.begin()()
    pair.decode.memory.raw[1].reshape(PAGES, -1)[0, 0] ^= 1
    pair.decode.turn()
    pair.settle(6)
    assert len(pair.decode.free) == PAGES - 3


def two_places() -> tuple[Pair, Req]:
    """Give a pair whose decode waits for two ranks of prefill, of which the second only takes messages."""
    pair, req = Pair(), Req(7, 12)
    pair.decode.prefill_ports.append(101)
    pair.decode.network[101] = deque()
    pair.offer(req)
    pair.prefill.send(req, [3, 9, 4])
    pair.prefill.begin()()
    return pair, req


def test_the_promise_of_one_place_does_not_vouch_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank of prefill has promised when the transfer is given up; the other may be writing still."""
    new_sessions(monkeypatch, ends=False)
    pair, _ = two_places()
    pair.decode.messages()
    pair.decode.queue[0][1].abort()
    pair.settle(4)
    assert len(pair.decode.free) == PAGES - 3


def test_prefill_sends_nothing_to_a_decode_with_another_layout() -> None:
    """What is written in pages of another size lands beside them: its client hears so instead, at once."""
    pair, req = Pair(decode={"item": 64}), Req(7, 12)
    pair.hand_off(req, [3, 9, 4])
    assert not pair.prefill.posted
    pair.settle()
    assert "lays out its pages" in pair.decode.answers[0].finished_reason.message
    assert len(pair.decode.free) == PAGES


def test_no_rank_gives_back_what_another_still_holds() -> None:
    """Pages come back on all ranks in one turn, or admission would part ways."""
    pair, req = Pair(), Req(7, 12)
    pair.decode.stand_in.others = [False]
    pair.offer(req)
    pair.decode.queue[0][1].abort()
    pair.settle(6)
    assert len(pair.decode.free) == PAGES - 3
    pair.decode.stand_in.others = [True]
    pair.settle()
    assert len(pair.decode.free) == PAGES


def test_a_transfer_that_another_rank_refused_is_held_on_this_one_too() -> None:
    """This rank found nothing wrong; the vote was to fail, so that all ranks hold the same, in the same order."""
    pair, req = Pair(), Req(7, 12)
    pair.offer(req)
    pair.prefill.send(req, [3, 9, 4])
    pair.prefill.begin()()
    entry = pair.decode.queue.pop()
    pair.decode.turn()
    assert entry[1].poll() is KVPoll.SUCCESS
    pair.decode._conclude(entry, KVPoll.FAILED)
    assert len(pair.decode.wiring.at_decode.quarantine.held) == 1  # type: ignore[union-attr]
    assert len(pair.decode.free) == PAGES - 3
    pair.decode.turn()
    assert len(pair.decode.free) == PAGES


def test_much_of_the_pool_in_quarantine_keeps_new_requests_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing new is offered in a session that is about to end, once a quarter of the pool waits for that."""
    pair, lost, open_, late = Pair(), Req(7, 20), Req(8, 4), Req(9, 4)
    new_sessions(monkeypatch)
    pair.offer(lost)
    pair.offer(open_)
    pair.prefill.outcome = -1
    pair.prefill.send(lost, [3, 9, 4, 1, 2])
    pair.prefill.begin()()
    pair.settle()
    pair.decode.submit(late)
    pair.settle()
    assert [req for req, _ in pair.decode.waiting] == [late]
    pair.prefill.outcome = 0
    pair.prefill.send(open_, [5])
    pair.prefill.begin()()
    pair.settle(4)
    assert not pair.decode.waiting
    assert open_.rid in pair.decode.running


def test_a_second_request_in_an_open_room_is_refused() -> None:
    """The room is chosen by whoever asks; the first request in it is not disturbed."""
    pair, req, second = Pair(), Req(7, 12), Req(7, 12)
    pair.offer(req)
    pair.decode.submit(second)
    pair.decode.turn()
    assert pair.decode.answers == [second]
    pair.prefill.send(req, [3, 9, 4])
    pair.prefill.begin()()
    pair.decode.turn()
    assert req.rid in pair.decode.running


def test_without_that_guard_the_first_request_loses_its_room() -> None:
    """As shipped, the end of the second is taken for the end of the first."""
    away = {"without": {"receiver-made", "receiver-cleared"}}
    pair, req, second = Pair(decode=away), Req(7, 12), Req(7, 12)
    pair.offer(req)
    pair.decode.submit(second)
    pair.decode.queue[0][1].conclude_state = None
    pair.decode.waiting[0][1].conclude_state = KVPoll.FAILED
    pair.decode.turn()
    assert pair.decode.request_status.get(7) is None


def test_a_second_request_in_an_open_room_at_prefill_is_refused() -> None:
    """Its pages would be taken for the first one's, with a count that may well match."""
    pair, req, second = Pair(), Req(7, 12), Req(7, 12)
    pair.offer(req)
    pair.prefill.submit(second)
    assert pair.prefill.queue == [req]
    assert second.finished_reason.status_code == 400


def test_a_room_that_was_used_can_be_used_again() -> None:
    """One after the other in the same room, each is verified as an attempt of its own."""
    pair = Pair()
    for _ in range(3):
        req = Req(7, 12)
        pair.hand_off(req, [3, 9, 4])
        pair.prefill.clear(req)
        pair.decode.finish(req)
    assert len(pair.decode.free) == PAGES
    assert not pair.decode.answers


def test_prefill_sends_nothing_to_a_decode_without_the_guard() -> None:
    """Who compares nothing is sent nothing."""
    pair, req = Pair(decode=OFF), Req(7, 12)
    pair.hand_off(req, [3, 9, 4])
    assert not pair.prefill.posted
    assert not pair.decode.running


def test_a_pair_with_two_keys_hands_nothing_off() -> None:
    """Neither side believes the other."""
    pair, req = Pair(decode={"key": "other" * 8}), Req(7, 12)
    pair.hand_off(req, [3, 9, 4])
    assert not pair.decode.running


@pytest.mark.parametrize("observer", ["prefill", "decode"])
def test_observing_beside_an_unguarded_peer_changes_nothing(observer: str) -> None:
    """In ``observe`` a pair of which one role has no guard answers as it did before."""
    sides = {"prefill": OFF, "decode": OFF, observer: {"mode": "observe"}}
    pair, req = Pair(**sides), Req(7, 12)
    pair.hand_off(req, [3, 9, 4])
    assert req.rid in pair.decode.running
    pair.decode.finish(req)
    assert len(pair.decode.free) == PAGES


def test_observing_on_both_roles_lets_the_incident_happen_and_counts_it() -> None:
    """Nothing is refused; what would have been is in the counts."""
    pair, asked = Pair({"mode": "observe"}, {"mode": "observe"}), Req(7, 12)
    pair.hand_off(asked, STUB, at_prefill=Req(7, 12, refused=LONG))
    assert asked.rid in pair.decode.running


def test_a_hook_that_was_not_put_in_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang logs a hook that it could not apply, and serves; the guard does not."""
    monkeypatch.setattr("kvfence.guard.sglang.wiring.unwrapped", lambda _names: ["sglang.gone"])
    with pytest.raises(SettingsError, match=r"sglang\.gone"):
        Pair()


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("backend", ["NixlKVManager", "MoriKVManager", "AscendKVManager"])
def test_another_transfer_backend_ends_the_start(role: str, backend: str) -> None:
    """Half of the hooks would be called there, and nothing verified: it is refused by name, observed or not."""
    for mode in ("enforce", "observe"):
        with pytest.raises(SettingsError, match=backend):
            Pair(**{role: {"backend": backend, "mode": mode}})


def test_a_role_whose_manager_the_guard_never_saw_ends_the_start() -> None:
    """SGLang's fake backend shares nothing with the others; a process without a role is left alone."""
    wiring = Wiring(settings.load({"KVFENCE_GUARD_KEY": KEY}))
    for mode in ("prefill", "decode"):
        with pytest.raises(SettingsError, match="not covered"):
            wiring.hook("roles-made")(None, SimpleNamespace(disaggregation_mode=SimpleNamespace(value=mode)))
    wiring.hook("roles-made")(None, SimpleNamespace(disaggregation_mode=SimpleNamespace(value="null")))


def test_a_device_that_is_not_covered_ends_the_start() -> None:
    """There is no digest of its pages, so that there is no guard of them either."""
    wiring = Wiring(settings.load({"KVFENCE_GUARD_KEY": KEY}))
    manager = type("MooncakeKVManager", (), {"kv_args": Memory(1).args})()
    with pytest.raises(SettingsError, match="npu"):
        wiring.manager_made(None, manager, None, SimpleNamespace(value="decode"), SimpleNamespace(device="npu"))


def test_an_engine_that_does_not_count_its_writes_is_refused() -> None:
    """Without that count prefill could vouch for nothing."""
    with pytest.raises(SettingsError, match="does not count"):
        Pair(prefill={"counts": False})
