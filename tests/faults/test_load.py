"""The server as a user runs it, and clients that leave it at random moments."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.faults.numbers import Numbers
from tests.faults.served import Served, serve

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]
LEAVING = 200


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """Two prefill and two decode workers with the toy model."""
    flags = ("--prefill-workers", "2", "--decode-workers", "2", "--pool-tokens", "2048")
    async with serve(tmp_path_factory.mktemp("serve"), *flags) as running:
        yield running


async def leave(served: Served, number: int, after_s: float) -> bool:
    """Ask for a long stream and hang up after a moment. Returns: had anything come?"""
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(
        {"model": "toy", "prompt": f"{number} " * (1 + number % 60), "max_tokens": 200, "stream": number % 3 != 0}
    ).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    try:
        async with asyncio.timeout(after_s):
            return bool(await reader.read(1))
    except TimeoutError:
        return False
    finally:
        if number % 2:
            writer.transport.abort()  # a reset
        writer.close()


async def test_clients_that_disconnect_at_random_moments(served: Served, numbers: Numbers) -> None:
    """200 clients leave before, during and after everything that can happen to them; all pages return."""
    draw, before = random.Random(7), served.processes()
    began_s = time.monotonic()
    answered = 0
    for _ in range(LEAVING // 20):
        leaving = [leave(served, draw.randrange(1000), draw.expovariate(2.0)) for _ in range(20)]
        answered += sum(await asyncio.gather(*leaving))
    assert await served.at_rest()
    numbers.note(
        clients_that_left=LEAVING, of_them_answered=answered, left_and_at_rest_after_s=round(time.monotonic() - began_s)
    )
    async with httpx.AsyncClient(base_url=served.url, timeout=30) as client:
        response = await client.post("/v1/completions", json={"model": "toy", "prompt": "still there", "max_tokens": 5})
    assert response.status_code == 200
    assert {name: process.pid for name, process in served.processes().items()} == {
        name: process.pid for name, process in before.items()
    }
