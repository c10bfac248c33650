"""What one core takes to hear 64 streams at 2,000 chunks a second in total: ``make bench BENCH=probe_client``.

The server, a process of its own, sends pieces at a steady pace; CPU seconds are the client process's alone. Below one
CPU second a second the client keeps up on one core. Beside it, the same bytes read by httpx without looking into them.
"""

import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import httpx

from kvfence.probe.client import Client, Patience
from kvfence.probe.door import Api, Door
from kvfence.probe.exchange import Ask, Phase

STREAMS, CHUNKS_PER_S, SECONDS, ROUNDS = 64, 2000, 8.0, 3

SERVER = """
import asyncio, json
PIECE = b'data: {"id":"x","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" word",' \\
    b'"logprobs":null,"finish_reason":null}]}\\n\\n'
async def serve(reader, writer):
    head = await reader.readuntil(b"\\r\\n\\r\\n")
    length = next(int(l.split(b":")[1]) for l in head.split(b"\\r\\n") if l.lower().startswith(b"content-length"))
    body = json.loads(await reader.readexactly(length))
    count, per_s = body["max_tokens"], float(body["model"])
    writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n")
    loop = asyncio.get_running_loop()
    began = loop.time()
    for index in range(count):
        await asyncio.sleep(max(0.0, began + index / per_s - loop.time()))
        writer.write(b"%x\\r\\n%s\\r\\n" % (len(PIECE), PIECE))
    writer.write(b"e\\r\\ndata: [DONE]\\n\\n\\r\\n0\\r\\n\\r\\n")
    await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


async def ours(url: str, per_stream: float, count: int) -> int:
    """Hear all streams out with the probe's client; give the pieces."""
    door = Door(base_url=url, model=str(per_stream), keys={"t": ""}, api=Api.COMPLETIONS)
    async with Client(door, STREAMS) as client:
        asks = [
            Ask(number=n, tenant="t", phase=Phase.SEED, prompt="x" * 4000, max_tokens=count) for n in range(STREAMS)
        ]
        heard = await asyncio.gather(*(client.ask(ask, Patience(SECONDS * 10)) for ask in asks))
    return sum(each.exchange.num_pieces for each in heard)


async def bare(url: str, per_stream: float, count: int) -> int:
    """Read the same bytes and look at none."""
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=STREAMS)) as client:

        async def one() -> int:
            body = {"model": str(per_stream), "max_tokens": count, "prompt": "x" * 4000}
            async with client.stream("POST", url + "/completions", json=body) as response:
                return sum([1 async for _ in response.aiter_bytes()])

        return sum(await asyncio.gather(*(one() for _ in range(STREAMS))))


def measure(what: Callable[[str, float, int], Awaitable[int]], url: str) -> dict[str, float]:
    """Run once; give pieces, seconds and CPU seconds."""
    per_stream = CHUNKS_PER_S / STREAMS
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    pieces = asyncio.run(what(url, per_stream, int(per_stream * SECONDS)))  # type: ignore[arg-type]
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    return {
        "pieces": pieces,
        "wall_s": round(wall_s, 2),
        "cpu_s": round(cpu_s, 3),
        "cpu_share": round(cpu_s / wall_s, 3),
    }


def main() -> None:
    """Measure both by turns and print one JSON document."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        port = (server.stdout.readline() if server.stdout else "").strip()
        url = f"http://127.0.0.1:{port}/v1"
        rounds = [{"ours": measure(ours, url), "bare": measure(bare, url)} for _ in range(ROUNDS)]
    finally:
        server.terminate()
        server.wait(10)
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()}
    print(json.dumps({"streams": STREAMS, "chunks_per_s": CHUNKS_PER_S, "rounds": rounds, **machine}, indent=2))


if __name__ == "__main__":
    main()
