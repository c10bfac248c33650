"""What a worker may do to the probe that speaks to it."""

import asyncio
from typing import Any

from kvfence.probe.handoff.pair import Pair, Role, Site
from tests.unit.probe.fakes import Fake, Handler, Seen, Wire


async def asked(handler: Handler, key: str = "", timeout_s: float = 10.0) -> Any:
    """What one request to decode is answered."""
    async with Fake(handler) as fake:
        url = fake.url.removesuffix("/v1")
        site = Site(urls={Role.PREFILL: url, Role.DECODE: url}, model="m", key=key, timeout_s=timeout_s)
        async with asyncio.timeout(60), Pair(site) as pair:
            return await pair.complete(Role.DECODE, [1], 1)


async def test_a_worker_that_drips_is_given_up() -> None:
    """The time is for the whole answer: a byte now and then does not renew it."""

    async def dripping(_: Seen, wire: Wire) -> None:
        await wire.head(200, {"content-type": "application/json"})
        while True:
            await wire.send(b" ")
            await asyncio.sleep(0.05)

    reply = await asked(dripping, timeout_s=0.3)
    assert reply.status is None
    assert "within" in reply.message


async def test_a_short_key_does_not_hide_a_marker() -> None:
    """A key of a few letters is in many a word: it is taken out of errors, and an answer stays as it came."""
    answer = {"choices": [{"text": "copper lantern"}]}
    assert (await asked(lambda _, wire: wire.answer(200, answer), key="ant")).text == "copper lantern"
    refused = await asked(lambda _, wire: wire.answer(401, {"error": "no such key: ant"}), key="ant")
    assert refused.message == "no such key: (key)"
