"""Prefill in one network namespace and decode in another: the data plane of two hosts, whole, cut and mended."""

import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from kvfence.core.settings import TransportSettings
from kvfence.gateway.responses import failure_of
from kvfence.kv.storage import PoolBuffer, map_shared, pool_bytes
from kvfence.protocol.events import SessionRebuilt
from kvfence.protocol.guards import Rules
from kvfence.protocol.messages import EndReason
from tests.integration.mooncake.hosts import DECODE_HOST, PREFILL_HOST, Cut, TwoHosts, two_hosts
from tests.integration.mooncake.programs import NAMESPACE, PROGRAMS
from tests.integration.runtime.arithmetic import arithmetic_layout
from tests.integration.runtime.faults import Fault
from tests.integration.runtime.pairs import Pair, Scene, Stream, running_pair, until

pytestmark = [pytest.mark.mooncake, pytest.mark.asyncio]

HEARD_MAX_S = 8.0
"""Within this a client hears of its lost transfer: the engine's time-out and what surrounds it."""

ACROSS = TransportSettings(kind="mooncake", prefill_host=PREFILL_HOST, decode_host=DECODE_HOST)
PROMPT = range(500, 900)
"""25 pages, more than the buffers of a connection hold at once."""


@pytest.fixture
def hosts(as_root: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoHosts]:
    """Two hosts, and workers that will live there."""
    with two_hosts() as hosts:
        monkeypatch.setenv(NAMESPACE["prefill"], hosts.prefill)
        monkeypatch.setenv(NAMESPACE["decode"], hosts.decode)
        yield hosts


def scene(rules: Rules | None = None) -> Scene:
    """A pair across two hosts."""
    return Scene(rules=rules or Rules.all(), transport=ACROSS, modules=PROGRAMS, prefill_pages=40, decode_pages=80)


@asynccontextmanager
async def cut_in_mid_transfer(pair: Pair, hosts: TwoHosts, how: Cut) -> AsyncIterator[Stream]:
    """Give a request whose pages were about to be sent when the cable was cut; mend it afterwards."""
    pair.faults.hang()
    pair.faults.arm(Fault("hang"))
    lost = pair.stream(PROMPT, 20)
    await until("a batch is about to be sent", pair.faults.fired)
    hosts.cut(how)
    try:
        (pair.faults.path / "hang").unlink()
        yield lost
    finally:
        hosts.mend(how)


def fences(pair: Pair) -> int:
    """How often decode's session was rebuilt in this life, the first one included."""
    return sum(isinstance(step.event, SessionRebuilt) for step in pair.steps("decode"))


@contextmanager
def decode_s_bytes(pair: Pair) -> Iterator[PoolBuffer]:
    """Decode's pool, which only its own process holds."""
    layout, folder = arithmetic_layout(), Path(f"/proc/{pair.pid('decode')}/fd")
    (link, *_) = [link for link in folder.iterdir() if "kvfence-pool" in os.readlink(link)]
    memory = map_shared(os.open(link, os.O_RDWR), pool_bytes(layout, pair.scene.decode_pages))
    try:
        yield PoolBuffer(memory.buffer, layout, pair.scene.decode_pages)
    finally:
        memory.close()


async def test_two_hosts_serve(hosts: TwoHosts, tmp_path: Path) -> None:
    """Eight requests at once across the cable are answered as the model says, and every page is FREE."""
    async with running_pair(scene(), tmp_path) as pair:
        streams = [pair.stream(range(i * 11, i * 11 + 60), 15) for i in range(8)]
        for stream in streams:
            assert await stream.finish() is EndReason.LENGTH
            assert stream.right
        await pair.all_free()


@pytest.mark.parametrize("how", ["link", "drop"])
async def test_a_cut_cable(hosts: TwoHosts, tmp_path: Path, how: Cut) -> None:
    """The lost request hears so in time, its pages wait for a new session, and a running one goes on, all of it right.

    While the cable is cut, new requests are refused in time; once it is mended, everything serves and is FREE.
    """
    async with running_pair(scene(), tmp_path) as pair:
        await pair.works()
        pair.faults.hold(60)
        running = pair.stream(range(30), 60)
        await running.reach(20)
        rebuilt = fences(pair)
        async with cut_in_mid_transfer(pair, hosts, how) as lost:
            start = time.monotonic()
            assert await lost.finish() is EndReason.TRANSFER_FAILED
            assert time.monotonic() - start < HEARD_MAX_S
            assert lost.tokens == []
            await until("the pages were fenced by a new session", lambda: fences(pair) > rebuilt)
            start = time.monotonic()
            assert await pair.stream(range(40), 5).finish() is EndReason.TRANSFER_FAILED
            assert time.monotonic() - start < HEARD_MAX_S
        pair.faults.let_go()
        assert await running.finish() is EndReason.LENGTH
        assert running.right
        await pair.all_free(timeout_s=30.0)
        await pair.works()
        await pair.all_free()
    assert failure_of(EndReason.TRANSFER_FAILED).status == 503


async def late_bytes(pair: Pair, hosts: TwoHosts) -> int:
    """Cut and mend; give how many bytes of the lost request's pages changed after those pages were FREE."""
    await pair.works()
    async with cut_in_mid_transfer(pair, hosts, "drop") as lost:
        pages = list(pair.granted_pages(lost))
        assert await lost.finish() is EndReason.TRANSFER_FAILED
        await pair.all_free("decode")
        with decode_s_bytes(pair) as pool:
            pool.records[pages] = 0
    with decode_s_bytes(pair) as pool:
        try:
            await until("bytes land", lambda: pool.records[pages].any(), 5.0)
        except AssertionError:
            return 0
        return int(np.count_nonzero(pool.records[pages]))


async def test_after_the_fence_nothing_lands(hosts: TwoHosts, tmp_path: Path) -> None:
    """The pages are FREE because the session is a new one: what was under way when the cable was cut never comes."""
    async with running_pair(scene(), tmp_path) as pair:
        assert await late_bytes(pair, hosts) == 0
        await pair.works()


async def test_release_without_the_fence_would_leak(hosts: TwoHosts, tmp_path: Path) -> None:
    """Guard drain-or-fence away: *unknown* is taken for *drained*, and a prompt lands in pages that are FREE."""
    async with running_pair(scene(Rules.without("drain-or-fence@decode")), tmp_path) as pair:
        assert await late_bytes(pair, hosts) > 0
