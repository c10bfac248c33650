"""Practice servers that leak nothing and yet answer wrong: a refusal that is an empty answer, and one that is late."""

import time

from tests.integration.ranges.served import running

OVERSIZE = "Count these: " + "one two three " * 300


async def test_a_refusal_is_taken_for_an_empty_answer() -> None:
    """200 without a word above the pool, and right answers below."""
    async with running("empty-200") as server:
        said = await server.bob.ask(OVERSIZE)
        assert (said.status, said.text) == (200, "")
        assert (await server.bob.ask("Repeat this: plain words")).text == " plain words"


async def test_a_refusal_comes_late() -> None:
    """400 above the pool, but not before its time."""
    async with running("slow-refusal", refusal_after_s=1.5) as server:
        began = time.monotonic()
        said = await server.bob.ask(OVERSIZE)
        assert (said.status, said.code) == (400, "context_length_exceeded")
        assert time.monotonic() - began > 1.5


async def test_with_fits_put_back_the_refusal_comes_at_once_and_is_one() -> None:
    """The same mistake, and the gateway asks before prefill does."""
    async with running("slow-refusal", "fits@gateway", refusal_after_s=60.0) as server:
        said = await server.bob.ask(OVERSIZE)
        assert (said.status, said.code) == (400, "context_length_exceeded")
