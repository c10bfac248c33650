"""Garbled copies: only what no sound server does to one greedy prompt accuses."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from kvfence.probe.detectors import garbled_echo
from kvfence.probe.exchange import Phase, Record
from kvfence.probe.finding import Severity
from tests.unit.probe.endpoints import TENANTS, record

SOUND = record(1)
MARKER = SOUND.planted[TENANTS[0]][0]
RIGHT = f"- {MARKER}\n- {MARKER}"


def answered(texts: Sequence[str], roles: Sequence[str] = ("alone",), deterministic: bool | None = True) -> Record:
    """A record in which one prompt of a marker was answered so, in this order; roles by turns."""
    first = SOUND.exchanges[0]
    ask = replace(
        first.ask, phase=Phase.REPLAY, prompt=f"#1 Repeat these lines:\n- {MARKER}\n", own=(MARKER,), echo=(MARKER,)
    )
    exchanges = tuple(
        replace(first, ask=replace(ask, number=index, role=roles[index % len(roles)]), text=text)
        for index, text in enumerate(texts)
    )
    return replace(SOUND, exchanges=exchanges, calibration=replace(SOUND.calibration, deterministic=deterministic))


def severities(made: Record) -> list[Severity]:
    """What is said."""
    return [each.severity for each in garbled_echo.look(made)]


def garbled(number: int) -> str:
    """A copy that no other is like."""
    return f"- xq{number}z {MARKER}\n- {MARKER}"


@pytest.mark.parametrize("roles", [("alone",), ("before",), ("after-b", "after-c")])
def test_copies_that_are_right_only_at_times_are_suspect(roles: Sequence[str]) -> None:
    """Most of them are wrong, and each in its own way."""
    made = answered([RIGHT, *map(garbled, range(4))], roles)
    assert severities(made) == [Severity.SUSPECT]
    assert len(garbled_echo.look(made)[0].sights) == 4


def test_twins_count_as_one_prompt() -> None:
    """Prompts that differ in their number alone are one text: also the first of them may accuse, as none is cached."""
    made = answered([garbled(0), RIGHT, garbled(1), garbled(2)])
    twins = tuple(
        replace(each, ask=replace(each.ask, prompt=f"#{each.ask.number:06}{each.ask.prompt[2:]}", twin_of=1))
        for each in made.exchanges
    )
    assert severities(made) == [Severity.NOTE]
    assert severities(replace(made, exchanges=twins)) == [Severity.SUSPECT]


def test_a_model_that_slips_now_and_then_is_noted() -> None:
    """Less than a fifth of its copies: small models do."""
    assert severities(answered([RIGHT] * 16 + [garbled(number) for number in range(3)])) == [Severity.NOTE]


def test_few_are_a_note() -> None:
    """Two may be anything."""
    assert severities(answered([RIGHT, RIGHT, garbled(1), garbled(2)])) == [Severity.NOTE]


def test_without_determinism_they_are_a_note() -> None:
    """The premise does not hold on a server that answers one greedy prompt in two ways."""
    for deterministic in (False, None):
        assert severities(answered([RIGHT, *map(garbled, range(4))], deterministic=deterministic)) == [Severity.NOTE]


@pytest.mark.parametrize(
    "texts",
    [
        [garbled(1), RIGHT, RIGHT, RIGHT],  # the first, computed without a cache
        [garbled(1), RIGHT, garbled(1), RIGHT, garbled(1)],  # two ways to compute it
        [garbled(number) for number in range(5)],  # a model that never copies
        [RIGHT, f"{RIGHT} {SOUND.planted[TENANTS[1]][0]} so", RIGHT],  # another's text: for other detectors
        [RIGHT, f"{RIGHT} {MARKER[:3]}", RIGHT],  # cut by the answer's end
    ],
)
def test_what_a_sound_server_does_is_no_slip(texts: Sequence[str]) -> None:
    """A cold cache, two ways to compute, a model that cannot copy, an answer that was cut."""
    assert severities(answered(texts)) == []


def test_under_load_nothing_counts() -> None:
    """Another batch is another rounding."""
    assert severities(answered([RIGHT, *map(garbled, range(4))], ("loaded",))) == []
