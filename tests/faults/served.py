"""``kvfence serve`` as a process of its own with the toy model, its processes and its numbers."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil
from msgspec import Struct

from kvfence.models.toy import write_toy_checkpoint

READY_S = 120.0
PAGES = re.compile(r'^kvfence_pool_pages\{role="\w+",state="(\w+)",worker="([\w-]+)"\} ([\d.]+)$', re.M)
OPEN = re.compile(r"^kvfence_requests_open ([\d.]+)$", re.M)


class Served(Struct):
    """A running server. ``folder`` has its log."""

    url: str
    process: asyncio.subprocess.Process
    folder: Path

    def processes(self) -> dict[str, psutil.Process]:
        """The gateway and every worker, by name."""
        gateway = psutil.Process(self.process.pid)
        found = {"gateway": gateway}
        for child in gateway.children(recursive=True):
            words = " ".join(child.cmdline())
            role = next((role for role in ("prefill", "decode") if f"{role}_worker" in words), None)
            if role is not None:
                found[f"{role}-{sum(name.startswith(role) for name in found)}"] = child
        return found

    async def at_rest(self, timeout_s: float = 30.0) -> bool:
        """Wait until no page is held: each is free, or cached for its tenant; and no request is open."""
        async with asyncio.timeout(timeout_s), httpx.AsyncClient() as client:
            while True:
                text = (await client.get(f"{self.url}/metrics")).text
                held = [m for m in PAGES.findall(text) if m[0] not in RESTING and float(m[2])]
                if not held and float(OPEN.findall(text)[0]) == 0:
                    return True
                await asyncio.sleep(0.1)


RESTING = ("free", "cached")


@asynccontextmanager
async def serve(folder: Path, *flags: str) -> AsyncIterator[Served]:
    """Run the server while the block runs; it ends by SIGTERM, in order."""
    model = write_toy_checkpoint(folder / "toy")
    command = [str(Path(sys.executable).with_name("kvfence")), "serve", "--model", str(model), "--port", "0", *flags]
    with (folder / "server.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield Served(await _ready(process, folder / "server.log"), process, folder)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _ready(process: asyncio.subprocess.Process, log: Path) -> str:
    async with asyncio.timeout(READY_S):
        while not (found := re.search(r"ready: (http://[\d.]+:\d+)/v1", _text(log))):
            assert process.returncode is None, _text(log)
            await asyncio.sleep(0.05)
        return found.group(1)


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8")
