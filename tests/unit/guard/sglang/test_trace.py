"""What the guard writes down of an SGLang pair, and what replay says of it."""

from pathlib import Path
from typing import Any

import pytest

from kvfence.prove.replay import Replay, Ruling, replay
from tests.unit.guard.sglang.parts import Req
from tests.unit.guard.sglang.standin import Pair

STUB = [0]
REFUSED = Req(7, 12, refused="too long")


def judged(pair: Pair, folder: Path) -> Replay:
    """End the traces of both roles and replay them together."""
    for side in (pair.prefill, pair.decode):
        side.wiring.watcher.close()  # type: ignore[union-attr]
    return replay(sorted(folder.glob("*.ndjson")))


@pytest.fixture
def tracing(tmp_path: Path) -> dict[str, Any]:
    """Settings with a folder for traces."""
    return {"trace": str(tmp_path)}


def test_honest_hand_offs_conform(tracing: dict[str, Any], tmp_path: Path) -> None:
    """Two requests, one after the other in the same pages."""
    pair = Pair(tracing, tracing)
    for room in (7, 8):
        req = Req(room, 12)
        pair.hand_off(req, [3, 9, 4])
        pair.decode.finish(req)
        pair.prefill.clear(req)
    found = judged(pair, tmp_path)
    assert [trace.verdict for trace in found.traces] == [Ruling.CONFORMING] * 2, found


def test_what_was_refused_and_what_was_given_up_conform(tracing: dict[str, Any], tmp_path: Path) -> None:
    """The incident refused at both doors, a placeholder refused at adoption, a client that left in a transfer."""
    pair = Pair({**tracing, "without": {"prefill-admits"}}, tracing)
    pair.hand_off(Req(7, 12), STUB, at_prefill=REFUSED)
    pair.settle()
    left = Req(8, 12)
    pair.offer(left)
    pair.prefill.send(left, [3, 9, 4])
    land = pair.prefill.begin()
    pair.decode.queue[0][1].abort()
    pair.settle()
    land()
    pair.decode.wiring.at_decode.quarantine.held[0].asked_s = 0.0  # type: ignore[union-attr]
    pair.settle()
    assert not pair.decode.is_holding
    found = judged(pair, tmp_path)
    assert [trace.verdict for trace in found.traces] == [Ruling.CONFORMING] * 2, found


def test_a_refusal_that_decode_hears_in_time_conforms(tracing: dict[str, Any], tmp_path: Path) -> None:
    """Decode has offered its pages when prefill's refusal comes; they go back once, when prefill has vouched."""
    pair, asked = Pair(tracing, tracing), Req(7, 12)
    pair.decode.submit(asked)
    pair.decode.turn()
    pair.prefill.pump()
    pair.decode.turn()
    pair.prefill.submit(Req(7, 12, refused="too long"))
    pair.settle(4)
    assert not pair.decode.is_holding
    found = judged(pair, tmp_path)
    assert [trace.verdict for trace in found.traces] == [Ruling.CONFORMING] * 2, found


def test_the_incident_in_observe_is_rejected(tracing: dict[str, Any], tmp_path: Path) -> None:
    """Nothing was refused, so that the trace tells which properties broke, at which role."""
    observing = {**tracing, "mode": "observe"}
    pair = Pair(observing, observing)
    pair.hand_off(Req(7, 12), STUB, at_prefill=REFUSED)
    found = judged(pair, tmp_path)
    assert [trace.verdict for trace in found.traces] == [Ruling.PROPERTY_VIOLATED] * 2, found


def test_a_transfer_given_up_in_observe_is_rejected(tracing: dict[str, Any], tmp_path: Path) -> None:
    """Pages went back by a clock, while a write was under way."""
    pair, req = Pair(tracing, {**tracing, "mode": "observe"}), Req(7, 12)
    pair.offer(req)
    pair.prefill.send(req, [3, 9, 4])
    pair.decode.queue[0][1].abort()
    pair.decode.turn()
    found = judged(pair, tmp_path)
    assert Ruling.PROPERTY_VIOLATED in [trace.verdict for trace in found.traces], found


@pytest.mark.parametrize("has_door", [True, False])
def test_what_the_engine_keeps_out_itself_is_not_told_as_entering(
    tracing: dict[str, Any], tmp_path: Path, has_door: bool
) -> None:
    """Observed, a refused request enters the queue as shipped; later releases have a door of their own."""
    observing = {**tracing, "mode": "observe"}
    pair = Pair(observing, observing)
    for side in (pair.prefill, pair.decode):
        side.stand_in.has_door = has_door
        side.submit(Req(7, 12, refused="too long"))
    pair.prefill.submit(Req(8, 12))
    pair.decode.submit(Req(8, 12))
    ruling = Ruling.CONFORMING if has_door else Ruling.PROPERTY_VIOLATED
    found = judged(pair, tmp_path)
    assert [trace.verdict for trace in found.traces] == [ruling] * 2, found
