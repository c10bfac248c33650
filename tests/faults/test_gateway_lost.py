"""The gateway's own process, which is the supervisor too, killed and stopped at every stage of a hand-off.

Killed: no client takes what it got for a full answer, and no process, memory or socket folder is left when it is
started again. Stopped and continued: nobody is taken for dead meanwhile, and every request ends as it would have.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.site import Client
from tests.faults.stages import STAGES, Stage
from tests.integration.runtime.faults import FaultFolder
from tests.integration.runtime.pairs import ROOT, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]
STOPPED_S = 6.5
"""Longer than the silence after which a worker of the site is killed."""


def is_gone(pid: int) -> bool:
    """Is a process dead, whoever reaps it?"""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: paths of sockets are bounded."""
    with tempfile.TemporaryDirectory(prefix="f-") as name:
        yield Path(name)


def emptied(folder: Path) -> Path:
    """Give the folder for a site; of a former one's files only the folder of its sockets stays."""
    if (folder / "trace").exists():
        (folder / "trace").rmdir()
    return folder


@asynccontextmanager
async def lone_site(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """Run a server as a process of its own."""
    command = (sys.executable, "-m", "tests.faults.lone_site", str(folder))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            said = json.loads(await process.stdout.readline())
        yield process, said
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def socket_folders(folder: Path) -> set[Path]:
    """Folders of sockets that servers started with this TMPDIR have made."""
    return set(folder.glob("kvfence-*"))


def maps_a_pool(pid: int) -> bool:
    """Does a process hold a pool's memory?"""
    try:
        return "kvfence-pool" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
async def test_killed(folder: Path, stage: Stage) -> None:
    """Its clients' connections break without a finish, its workers die with it, and its successor clears up."""
    async with lone_site(folder) as (process, said):
        client, faults = Client(said["url"]), FaultFolder(folder)
        pids = list(said["workers"].values())
        assert any(map(maps_a_pool, pids))
        victim = await stage.reach(client, faults)
        process.kill()
        await process.wait()
        await until("every worker is gone", lambda: all(map(is_gone, pids)), 5.0)
        await victim.request[1]
        for _, task in victim.others:
            await task
        await client.close()
        assert victim.seen.broke
        assert not victim.seen.done
        assert victim.seen.right
        holders = [pid for pid in psutil.pids() if maps_a_pool(pid) and str(folder) in environment_of(pid)]
        assert holders == []
        faults.let_go()
    async with lone_site(emptied(folder)) as (process, said):
        assert socket_folders(folder) == {Path(said["control_dir"])}
        client = Client(said["url"])
        assert (await client.ask("after the restart", 5)).whole
        await client.close()


def environment_of(pid: int) -> str:
    """What a process was started with, as far as it may be read."""
    try:
        return Path(f"/proc/{pid}/environ").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
async def test_stopped_and_continued(folder: Path, stage: Stage) -> None:
    """No worker is replaced for a silence in which nobody listened, and the victim's answer is whole."""
    async with lone_site(folder) as (process, said):
        client, faults = Client(said["url"]), FaultFolder(folder)
        victim = await stage.reach(client, faults)
        process.send_signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        await until("it was stopped for long", lambda: time.monotonic() - stopped_s > STOPPED_S)
        process.send_signal(signal.SIGCONT)
        faults.let_go()
        await victim.request[1]
        assert victim.seen.whole
        for _, task in victim.others:
            await task
        assert all(seen.whole for seen, _ in victim.others)
        assert not any(map(is_gone, said["workers"].values()))
        await client.close()
