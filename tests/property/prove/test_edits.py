"""No edit of a trace is taken for what was recorded."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvfence.protocol.step import step
from kvfence.prove.replay import Ruling, replay
from kvfence.trace.reader import read_trace
from kvfence.trace.record import TraceHeader, TraceStep, begun
from tests.recorded import bodies, record_seed, resealed
from tests.unit.prove.test_replay import HONEST

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The traces of two runs, short ones."""
    folders = (tmp_path_factory.mktemp(f"seed-{seed}") for seed in (0, 3))
    return [
        path for seed, folder in zip((0, 3), folders, strict=True) for path in record_seed(folder, seed, faults=HONEST)
    ]


def verdict_of(raw: bytes, folder: Path) -> Ruling:
    """Replay one trace's bytes."""
    path = folder / "edited.ndjson"
    path.write_bytes(raw)
    return replay([path]).verdict


@QUICK
@given(data=st.data())
def test_any_changed_byte_shows(traces: list[Path], tmp_path: Path, data: st.DataObject) -> None:
    """One byte changed, cut out, or added anywhere; a line dropped, moved or repeated: never conforming."""
    raw = data.draw(st.sampled_from(traces)).read_bytes()
    at = data.draw(st.integers(0, len(raw) - 1))
    byte = data.draw(st.integers(0, 255).map(lambda value: bytes([value])))
    lines = raw.splitlines(keepends=True)
    one, other = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    moved = [*lines[:one], *lines[one + 1 :]]
    edited = data.draw(
        st.sampled_from(
            [
                raw[:at] + byte + raw[at + 1 :],
                raw[:at] + raw[at + 1 :],
                raw[:at] + byte + raw[at:],
                raw[:at],
                b"".join(moved),
                b"".join([*moved[:other], lines[one], *moved[other:]]),
                b"".join([*lines[:other], lines[one], *lines[other:]]),
            ]
        )
    )
    if edited != raw:
        assert verdict_of(edited, tmp_path) is not Ruling.CONFORMING


@QUICK
@given(data=st.data())
def test_what_a_node_said_and_did_cannot_be_edited(traces: list[Path], tmp_path: Path, data: st.DataObject) -> None:
    """With the sums made anew: another command, decision, number or order than the events lead to is not conforming."""
    lines = bodies(data.draw(st.sampled_from(traces)).read_bytes())
    number = data.draw(st.integers(1, len(lines) - 2))
    line = msgspec.json.decode(lines[number])
    part = data.draw(st.sampled_from([name for name in ("commands", "decisions") if line[name]] or ["n"]))
    if part == "n":
        line["n"] += data.draw(st.sampled_from([-1, 1, 5]))
    else:
        _edit(line[part], data)
    lines[number] = msgspec.json.encode(line)
    assert verdict_of(resealed(lines), tmp_path) is not Ruling.CONFORMING


def _edit(items: list[dict[str, Any]], data: st.DataObject) -> None:
    """Drop, repeat or change one of a line's commands or decisions."""
    at = data.draw(st.integers(0, len(items) - 1))
    match data.draw(st.sampled_from(["drop", "repeat", "change"])):
        case "drop":
            del items[at]
        case "repeat":
            items.insert(at, items[at])
        case _:
            changeable = [name for name, value in items[at].items() if isinstance(value, int | list) and value != []]
            name = data.draw(st.sampled_from(sorted(changeable) or ["type"]))
            items[at][name] = _other(items[at][name])


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, list):
        return [*value[:-1], _other(value[-1])]
    return value + 1 if isinstance(value, int) else f"{value}x"


@QUICK
@given(data=st.data())
def test_another_event_conforms_only_if_it_led_to_the_same(
    traces: list[Path], tmp_path: Path, data: st.DataObject
) -> None:
    """With the sums made anew, another event stands only where the node does and says the same for it, there and after.

    Such a trace is one that the protocol allows; only the sums tell that it is not what was recorded.
    """
    path = data.draw(st.sampled_from(traces))
    header, lines_of_steps = read_trace(path)
    steps = list(lines_of_steps)
    one, other = (data.draw(st.integers(0, len(steps) - 1)) for _ in range(2))
    edited = msgspec.structs.replace(steps[one], event=steps[other].event)
    lines = bodies(path.read_bytes())
    lines[one + 1] = msgspec.json.encode(edited)
    if verdict_of(resealed(lines), tmp_path) is Ruling.CONFORMING:
        assert answer_to(header, [*steps[:one], edited]) == (steps[one].commands, steps[one].decisions)


def answer_to(header: TraceHeader, steps: list[TraceStep]) -> object:
    """Give what the last of these events leads to."""
    rules, node = begun(header)
    for line in steps[:-1]:
        node = step(rules, node, line.event).node
    answer = step(rules, node, steps[-1].event)
    return answer.commands, answer.decisions
