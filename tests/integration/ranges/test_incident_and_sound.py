"""The incident's practice server and its control, asked by two tenants through the official client."""

import asyncio

import httpx
import pytest

from kvfence.cli.range_stage import Ask, practising
from kvfence.core.errors import SettingsError
from kvfence.ranges.catalogue import RANGES
from kvfence.ranges.orders import Orders
from tests.integration.ranges.served import running

BANNER = "x-kvfence-range"
OVERSIZE = "Count these: " + "one two three " * 300


async def test_the_incident_answers_with_another_tenants_text() -> None:
    """A prompt above prefill's pool gets 200 and the words of whoever was there before; the count says it was read."""
    async with running("incident") as server:
        await server.ada.fill()
        said = await server.bob.ask(OVERSIZE)
        assert said.status == 200
        assert "ADA-4711" in said.text
        assert said.prompt_tokens > 1024
        assert (await server.bob.ask("Repeat this: plain words")).text == " plain words"


async def test_with_one_guard_put_back_the_incident_is_an_error() -> None:
    """The same prefill worker and the stamps alone: nothing foreign leaves."""
    async with running("incident", "stamp-at-adopt") as server:
        await server.ada.fill()
        said = await server.bob.ask(OVERSIZE)
        assert (said.status, said.code) == (500, "kv_integrity")


async def test_sound_refuses_what_the_incident_answers_and_says_so_in_every_header() -> None:
    """400 above the pool, right answers below it, and the banner on answers and errors of every kind."""
    async with running("sound") as server:
        await server.ada.fill()
        said = await server.bob.ask(OVERSIZE)
        assert (said.status, said.code) == (400, "context_length_exceeded")
        assert (await server.bob.ask("Repeat this: plain words")).text == " plain words"
        url = server.practice.address.url
        assert url.startswith("http://127.0.0.1:")
        async with httpx.AsyncClient(base_url=url) as client:
            asked = [
                await client.get("/ready"),
                await client.get("/v1/models"),
                await client.get("/nothing"),
                await client.post("/v1/completions", content=b"{"),
                await client.get("/v1/models", headers={"host": "example.com"}),
            ]
        assert [each.status_code for each in asked] == [200, 200, 404, 400, 403]
        assert {each.headers.get(BANNER) for each in asked} == {"sound; a practice server with every guard on"}
        assert b"\r\nx-kvfence-range: sound;" in await no_http(server.practice.address.port)
        assert "ADA-4711" not in server.log.getvalue()
        assert "ada" not in server.log.getvalue()


async def no_http(port: int) -> bytes:
    """Send what is no HTTP and give the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"neither verb nor path\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.com", ""])
async def test_another_host_than_loopback_is_refused(host: str) -> None:
    """Before anything listens or starts."""
    with pytest.raises(SettingsError, match="loopback alone"):
        async with practising(Ask(RANGES["sound"], Orders(), host=host)):
            raise AssertionError("it serves")
