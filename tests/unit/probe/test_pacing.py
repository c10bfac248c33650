"""When a server asks to come back later: what counts as asking again, and when nobody comes back."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from kvfence.probe.pacing import PAUSE_S_MAX, STRIKES_MAX, Overloaded, Pacer, TooLate


async def burst(pacer: Pacer, width: int, let_in: int) -> None:
    """So many come together, of whom so many are let in."""
    async with AsyncExitStack() as stack:
        turns = [await stack.enter_async_context(pacer.slot()) for _ in range(width)]
        for turn in turns[let_in:]:
            pacer.limited(0.0, turn)


async def test_refusals_of_one_burst_are_one_strike() -> None:
    """A server that lets two of many in at once is busy once: width is halved once, and the run goes on."""
    pacer = Pacer(16, 4)
    await burst(pacer, 16, 2)
    assert (pacer.refused, pacer.width) == (14, 8)
    async with pacer.slot():
        assert pacer.in_flight == 1


async def test_refusals_of_many_turns_end_the_run() -> None:
    """After so many turns without an answer nobody is sent any more."""
    pacer = Pacer(16, 4)
    for _ in range(STRIKES_MAX):
        await burst(pacer, 1, 0)
    with pytest.raises(Overloaded):
        await burst(pacer, 1, 0)


async def test_who_asks_for_very_long_is_left_alone_at_once() -> None:
    """A pause longer than a run can wait ends it: neither waited out nor cut short."""
    pacer = Pacer(16, 4)
    async with pacer.slot() as turn:
        pacer.limited(PAUSE_S_MAX + 1, turn)
    with pytest.raises(Overloaded):
        await burst(pacer, 1, 0)


async def test_no_pause_outlasts_the_run() -> None:
    """Where the server asks for a minute and less is left, that is waited for, and nobody asks in the pause."""
    pacer = Pacer(16, 4, time.monotonic() + 0.05)
    async with pacer.slot() as turn:
        pacer.limited(60.0, turn)
    async with asyncio.timeout(30):
        with pytest.raises(TooLate):
            await burst(pacer, 1, 0)
