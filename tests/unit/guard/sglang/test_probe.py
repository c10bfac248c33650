"""Requests that name SGLang's stand-in for prefill, as its own health checks do and as any client may."""

from pathlib import Path
from typing import Any

import pytest

from kvfence.guard.sglang.engine import FAKE_HOST
from kvfence.prove.replay import Ruling, replay
from tests.unit.guard.sglang.parts import BESIDE, PAGES, ROWS, Req
from tests.unit.guard.sglang.standin import Pair

SECRET = 77


def probe(num_tokens: int, room: int = 0) -> Req:
    """Give a request that no prefill will write for."""
    req = Req(room, num_tokens)
    req.bootstrap_host = FAKE_HOST
    return req


def full_of_anothers(**decode: Any) -> Pair:
    """Give a pair whose decode pages, and rows beside them, hold what another tenant left there."""
    pair = Pair(decode=decode)
    for raw in (*pair.decode.memory.raw, pair.decode.memory.beside):
        raw[:] = SECRET
    return pair


def read(pair: Pair, req: Req) -> set[int]:
    """Give the bytes that the request's passes read: its pages, and the row beside them."""
    pages = pair.decode.running[req.rid]
    found = {int(one) for raw in pair.decode.memory.raw for one in raw.reshape(PAGES, -1)[pages].ravel()}
    return found | {int(one) for one in pair.decode.memory.beside.reshape(ROWS, BESIDE)[0]}


@pytest.mark.parametrize("num_tokens", [1, 4])
def test_the_engines_own_probe_reads_noughts(place: str, num_tokens: int) -> None:
    """SGLang's health check (one token) and its warm-up (four) are answered, from nobody's bytes."""
    pair, req = full_of_anothers(), probe(num_tokens)
    pair.decode.submit(req)
    pair.decode.turn()
    assert read(pair, req) == {0}
    pair.decode.finish(req)
    assert len(pair.decode.free) == PAGES


def test_without_that_guard_it_reads_what_another_left() -> None:
    """As shipped: a success that nobody wrote for."""
    pair, req = full_of_anothers(without={"probe-told"}), probe(4)
    pair.decode.submit(req)
    pair.decode.turn()
    assert read(pair, req) == {SECRET}


def test_a_longer_request_of_nobody_is_refused() -> None:
    """A client that names the stand-in reserves nothing and has a 400, also where it names no room."""
    pair = full_of_anothers()
    for req in (probe(12), probe(5, room=7), probe(12)):
        pair.decode.submit(req)
        assert req.finished_reason.status_code == 400
    no_room = probe(12)
    no_room.bootstrap_room = None
    pair.decode.submit(no_room)
    assert not pair.decode.waiting
    assert len(pair.decode.answers) == 4


def test_without_the_door_it_is_answered_all_the_same() -> None:
    """As shipped; its pages are noughts by the other guard."""
    pair, req = full_of_anothers(without={"decode-admits"}), probe(12)
    pair.decode.submit(req)
    pair.decode.turn()
    assert read(pair, req) == {0}


def test_a_probe_in_a_room_that_is_open_disturbs_nobody() -> None:
    """Whoever names the room of a request under way, and nobody's prefill, takes nothing from it."""
    pair, req = Pair(), Req(7, 12)
    pair.offer(req)
    pair.decode.submit(probe(4, room=7))
    pair.decode.turn()
    pair.prefill.send(req, [3, 9, 4])
    pair.prefill.begin()()
    pair.decode.turn()
    assert req.rid in pair.decode.running


def test_observed_it_is_counted_and_its_trace_is_rejected(tmp_path: Path) -> None:
    """Nothing changes for its client."""
    pair, req = full_of_anothers(mode="observe", trace=str(tmp_path)), probe(12)
    pair.decode.submit(req)
    pair.decode.turn()
    assert read(pair, req) == {SECRET}
    wiring = pair.decode.wiring
    assert wiring is not None
    labels = {"role": "decode", "guard": "stamp-at-adopt", "answer": "observed"}
    assert wiring._registry.get_sample_value("kvfence:guard_decisions_total", labels) == 1
    wiring.watcher.close()
    found = replay(sorted(tmp_path.glob("*.ndjson")))
    assert [trace.verdict for trace in found.traces] == [Ruling.PROPERTY_VIOLATED]
