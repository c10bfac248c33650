"""Memory of every process of ``kvfence serve`` over 10,000 requests."""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.numbers import Numbers
from tests.faults.served import serve

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
REQUESTS = 10_000
LANES = 16
SAMPLE_EVERY = 250
GROWTH_KIB_MAX = 1.0
"""Of any process, for each request of the second half: less than any record of a request would take."""

Samples = dict[str, list[tuple[int, int]]]


def slope_kib(samples: list[tuple[int, int]]) -> float:
    """Fit a line through (requests, bytes) and give KiB a request."""
    numbers, sizes = zip(*samples, strict=True)
    return statistics.linear_regression(numbers, sizes).slope / 1024


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, prompt: str, max_tokens: int) -> int:
    """Ask over a connection that stays open, as cheaply as can be. Returns: the status."""
    body = json.dumps({"model": "toy", "prompt": prompt, "max_tokens": max_tokens}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = answer.partition("content-length: ")[2].partition("\r\n")[0]
    await reader.readexactly(int(length))
    return int(answer.split()[1])


async def lane(url: str, left: Iterator[int], processes: dict[str, psutil.Process], samples: Samples) -> None:
    """Ask one request after the other; look at every process now and then."""
    draw = random.Random(8)
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for number in left:
        assert await ask(reader, writer, "x" * draw.randrange(1, 60), draw.randrange(1, 4)) == 200
        if number % SAMPLE_EVERY == 0:
            for name, process in processes.items():
                samples[name].append((number, process.memory_info().rss))
    writer.close()


async def test_memory_stays_flat_over_many_requests(tmp_path: Path, numbers: Numbers) -> None:
    """No process grows with the number of requests."""
    async with serve(tmp_path, "--pool-tokens", "2048") as served:
        processes = served.processes()
        samples: Samples = {name: [] for name in processes}
        began_s, left = time.monotonic(), iter(range(REQUESTS))
        await asyncio.gather(*(lane(served.url, left, processes, samples) for _ in range(LANES)))
        numbers.note(requests=REQUESTS, requests_a_second=round(REQUESTS / (time.monotonic() - began_s), 1))
        assert await served.at_rest()
    growth = {name: slope_kib(points[len(points) // 2 :]) for name, points in samples.items()}
    for name, points in samples.items():
        first, half, last = (round(points[at][1] / 2**20, 1) for at in (0, len(points) // 2, -1))
        shown = f"{first} MiB, at half {half}, at the end {last}: {growth[name]:.3f} KiB a request in the second half"
        numbers.note(**{f"RSS of {name}": shown})
    assert max(growth.values()) < GROWTH_KIB_MAX, growth
