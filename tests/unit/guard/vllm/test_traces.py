"""What a guarded pair writes down of its hand-offs, judged by replay."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_pair as cases

from kvfence.prove.replay import Replay, Ruling, replay

Maker = Callable[..., Any]
NAMES = ["short_count", "stale", "forged", "too_many", "too_few", "salted", "edited", "unsealed"]
SERVED = [name for name in NAMES if name != "too_few"]
"""Where nothing is refused, a block too few ends the engine."""


def honest(prefill: Any, decode: Any) -> Any:
    """Many hand-offs in a small pool, so that blocks come round."""
    for number in range(30):
        tokens = [*range(1000 + 20 * number, 1000 + 20 * number + 1 + number % 12)]
        assert decode.answer(tokens, prefill.run(tokens, cases.ASKS)) == tokens
        prefill.expire()


def lost(prefill: Any, decode: Any, tokens: list[int] = cases.OWN) -> Any:
    """A read fails under way; others go on with what is left of the pool."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import Wire

    params = prefill.run(tokens, cases.ASKS)
    Wire.fails = True
    try:
        assert decode.answer(cases.OWN, params) is None
    finally:
        Wire.fails = False
    honest(prefill, decode)


def lost_of_another(prefill: Any, decode: Any) -> Any:
    """The same, of a hand-off that was refused already."""
    lost(prefill, decode, cases.VICTIM)


def played(make: Maker, folder: Path, course: Callable[..., Any], mode: str) -> Replay:
    """Play a course with traces and replay them."""
    prefill, decode = (make(role, 12, mode=mode, trace=folder) for role in ("prefill", "decode"))
    course(prefill, decode)
    prefill.close()
    decode.close()
    return replay(sorted(folder.glob("*.ndjson")))


@pytest.mark.parametrize("course", [honest, lost, *(getattr(cases, name) for name in NAMES)])
def test_in_enforce_every_course_conforms(fenced: Maker, tmp_path: Path, course: Callable[..., Any]) -> None:
    """What was refused was not used, and what may still be written to did not come back."""
    found = played(fenced, tmp_path, course, "enforce")
    assert found.verdict is Ruling.CONFORMING, [trace.why for trace in found.traces]


def test_honest_hand_offs_conform_in_observe_too(fenced: Maker, tmp_path: Path) -> None:
    """There is nothing to object to."""
    assert played(fenced, tmp_path, honest, "observe").verdict is Ruling.CONFORMING


@pytest.mark.parametrize("course", [lost, *(getattr(cases, name) for name in SERVED)])
def test_in_observe_what_was_used_or_came_back_all_the_same_is_found(
    fenced: Maker, tmp_path: Path, course: Callable[..., Any]
) -> None:
    """Without the guard's refusals the law is broken, and the trace says so."""
    assert played(fenced, tmp_path, course, "observe").verdict is Ruling.PROPERTY_VIOLATED


def test_in_observe_a_page_that_may_be_written_comes_back_though_nobody_promised_it(
    fenced: Maker, tmp_path: Path
) -> None:
    """Its request has failed, so that it was not used; the pool grants it again while a write may land."""
    found = played(fenced, tmp_path, lost_of_another, "observe")
    assert {name for trace in found.traces for name in trace.violated} == {"no-timer-frees"}


def test_a_trace_holds_no_token_and_no_key(fenced: Maker, tmp_path: Path) -> None:
    """Not even of a prompt whose tokens are easy to know."""
    prefill, decode = (fenced(role, trace=tmp_path, key="q" * 40) for role in ("prefill", "decode"))
    decode.answer([47_123] * 9, prefill.run([47_123] * 9, cases.ASKS))
    prefill.close()
    decode.close()
    text = "".join(path.read_text() for path in tmp_path.glob("*.ndjson"))
    assert text
    assert "47123" not in text
    assert "qqqq" not in text
