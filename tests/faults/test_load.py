"""The server as a user runs it under load: clients that leave at random moments, and memory over 10,000 requests."""

import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.faults.numbers import Numbers
from tests.faults.served import Served, serve

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]
LEAVING = 200
REQUESTS = 10_000
AT_ONCE = 16
SAMPLE_EVERY = 250
GROWTH_KIB_MAX = 1.0
"""Of any process, for each request of the second half: less than any record of a request would take."""


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


def slope_kib(samples: list[tuple[int, int]]) -> float:
    """Fit a line through (requests, bytes) and give KiB a request."""
    return statistics.linear_regression(*zip(*samples, strict=True)).slope / 1024


async def test_memory_stays_flat_over_many_requests(served: Served, numbers: Numbers) -> None:
    """10,000 requests in a row: no process grows with their number."""
    processes = served.processes()
    samples: dict[str, list[tuple[int, int]]] = {name: [] for name in processes}
    draw, began_s, left = random.Random(8), time.monotonic(), iter(range(REQUESTS))
    limits = httpx.Limits(max_connections=AT_ONCE)

    async def lane(client: httpx.AsyncClient) -> None:
        for number in left:
            body = {"model": "toy", "prompt": "x" * draw.randrange(1, 80), "max_tokens": draw.randrange(1, 6)}
            response = await client.post("/v1/completions", json=body)
            assert response.status_code == 200, response.text
            if number % SAMPLE_EVERY == 0:
                for name, process in processes.items():
                    samples[name].append((number, process.memory_info().rss))

    async with httpx.AsyncClient(base_url=served.url, timeout=60, limits=limits) as client:
        await asyncio.gather(*(lane(client) for _ in range(AT_ONCE)))
    numbers.note(requests=REQUESTS, requests_a_second=round(REQUESTS / (time.monotonic() - began_s), 1))
    growth = {}
    for name, points in samples.items():
        growth[name] = slope_kib(points[len(points) // 2 :])
        mib = [round(rss / 2**20, 1) for _, rss in points]
        shown = f"{mib[0]} to {mib[-1]} MiB, at half {mib[len(mib) // 2]}; {growth[name]:.3f} KiB a request"
        numbers.note(**{f"{name} RSS": shown})
    assert await served.at_rest()
    assert max(growth.values()) < GROWTH_KIB_MAX, growth
