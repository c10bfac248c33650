"""Prefill's writer over a stand-in engine: sessions told late, links that are not sound, failures and what follows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from kvfence.core.ids import BatchId, Incarnation, SessionId, new_session
from kvfence.core.settings import Settings, TransportSettings
from kvfence.kv.storage import PoolBuffer, open_shared, pool_bytes
from kvfence.protocol.commands import Post
from kvfence.protocol.events import BatchEnded, Event, SessionRebuilt
from kvfence.protocol.guards import Rules
from kvfence.runtime import mooncake_writer
from kvfence.runtime.lifeline import Begin, MeetPeer
from kvfence.runtime.mooncake_writer import MooncakeWriter
from kvfence.wire.mooncake import CHECK_RECORDS, MooncakeTransport, Receiver
from kvfence.wire.mooncake_engine import EngineSpec
from kvfence.wire.transport import PageBatch
from tests.fake_mooncake import FakeEngine, fake_mooncake
from tests.pools import ATTEMPT, DECODE, LAYOUT, PREFILL

NUM_PAGES = 4
NBYTES = pool_bytes(LAYOUT, NUM_PAGES + CHECK_RECORDS)
BEGIN = Begin(
    "prefill", PREFILL, "", "", Settings(transport=TransportSettings(kind="mooncake")), Rules.all(), NUM_PAGES
)


class Scene:
    """A writer, a decode pool, and what the writer reported."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.said = asyncio.Event()
        self.files = [open_shared(NBYTES) for _ in range(2)]
        self.pool = PoolBuffer(self.files[1].buffer, LAYOUT, NUM_PAGES)
        self.receiver = Receiver(EngineSpec("127.0.0.1"), self.files[1].fd, NBYTES)
        self.writer = MooncakeWriter(BEGIN, LAYOUT, self.files[0], self.report)
        PoolBuffer(self.files[0].buffer, LAYOUT, NUM_PAGES).records[:] = 7
        self.num_posts = 0

    def report(self, event: Event) -> None:
        """Take an event."""
        self.events.append(event)
        self.said.set()

    def post(self, session: SessionId | None = None) -> None:
        """Post page 0 to page 1."""
        self.num_posts += 1
        session = self.receiver.opened.session if session is None else session
        self.writer.post(Post(ATTEMPT, BatchId(self.num_posts), DECODE, (0,), (1,), session))

    async def ended(self, count: int) -> list[tuple[bool, bool]]:
        """Wait until so many batches have ended, and say how: success, source quiet."""
        async with asyncio.timeout(10):
            while len(ends := [e for e in self.events if isinstance(e, BatchEnded)]) < count:
                self.said.clear()
                await self.said.wait()
        return [(end.success, end.source_quiet) for end in ends]

    async def renewed(self, count: int) -> None:
        """Wait until the engine was renewed so many times."""
        async with asyncio.timeout(10):
            while sum(isinstance(event, SessionRebuilt) for event in self.events) < count:
                self.said.clear()
                await self.said.wait()

    def meet(self) -> None:
        """Introduce decode."""
        self.writer.meet(MeetPeer(DECODE, "decode", writes=False), None)

    def hear(self) -> None:
        """Have decode announce its session."""
        self.writer.hear(DECODE, self.receiver.opened)


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    """Run a writer."""
    with fake_mooncake():
        made = Scene()
        running = asyncio.create_task(made.writer.run())
        try:
            yield made
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def test_a_grant_may_overtake_its_session() -> None:
    """The batch waits a moment for the announcement, and is written."""
    async with scene() as it:
        it.meet()
        it.post()
        asyncio.get_running_loop().call_later(0.1, it.hear)
        assert await it.ended(1) == [(True, True)]
        assert (it.pool.records[1] == 7).all()


async def test_a_session_announced_before_the_peer_is_met_is_kept() -> None:
    """The two ways by which prefill hears of decode are not ordered."""
    async with scene() as it:
        it.hear()
        it.meet()
        it.post()
        assert await it.ended(1) == [(True, True)]


@pytest.mark.parametrize("gone", [True, False])
async def test_a_session_that_is_over_or_never_told_gets_nothing(gone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is posted, so nothing is in doubt and the engine lives on."""
    monkeypatch.setattr(mooncake_writer, "TELL_S", 0.1)
    async with scene() as it:
        it.meet()
        it.hear()
        old = it.receiver.opened.session
        it.receiver.rebuild()
        it.hear()
        it.post(old if gone else new_session())
        assert await it.ended(1) == [(False, True)]
        assert not it.pool.records.any()
        assert not any(isinstance(event, SessionRebuilt) for event in it.events)


async def test_an_address_that_is_not_decode_s_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pages go is a setting: no message can lead them elsewhere."""
    monkeypatch.setattr(mooncake_writer, "TELL_S", 0.1)
    async with scene() as it:
        it.meet()
        opened = it.receiver.opened
        it.writer.hear(DECODE, type(opened)(opened.session, "127.0.0.9", opened.port, opened.base, opened.nbytes))
        it.post()
        assert await it.ended(1) == [(False, True)]


async def test_a_batch_in_doubt_costs_its_queue_and_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was queued behind it for the same peer is never posted; the engine is rebuilt; the next batch is written."""
    async with scene() as it:
        it.meet()
        it.hear()
        it.post()
        await it.ended(1)
        write = MooncakeTransport.write

        def failing(self: MooncakeTransport, batch: PageBatch) -> None:
            FakeEngine.status = -1 if batch.batch == BatchId(2) else None
            write(self, batch)

        monkeypatch.setattr(MooncakeTransport, "write", failing)
        it.post()
        it.post()
        assert await it.ended(3) == [(True, True), (False, False), (False, True)]
        (doubtful,) = [
            i for i, event in enumerate(it.events) if isinstance(event, BatchEnded) and not event.source_quiet
        ]
        assert isinstance(it.events[doubtful + 1], SessionRebuilt)
        it.post()
        assert (await it.ended(4))[3] == (True, True)


async def test_a_link_that_is_not_sound_gets_no_page(capfd: pytest.CaptureFixture[str]) -> None:
    """It is tried once before the first batch; what does not hold is named, and nothing was posted."""
    async with scene() as it:
        FakeEngine.careless = True
        try:
            it.meet()
            it.hear()
            it.post()
            assert await it.ended(1) == [(False, True)]
        finally:
            FakeEngine.careless = False
        assert "link-is-sound does not hold" in capfd.readouterr().err


async def test_a_call_that_does_not_come_back_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client need not wait for it: the batch is given up in time, and what is posted meanwhile is refused."""
    monkeypatch.setattr(mooncake_writer, "PATIENCE_S", 0.1)
    async with scene() as it:
        it.meet()
        it.hear()
        it.post()
        await it.ended(1)
        loop, back, write = asyncio.get_running_loop(), asyncio.Event(), MooncakeTransport.write

        def hanging(self: MooncakeTransport, batch: PageBatch) -> None:
            asyncio.run_coroutine_threadsafe(back.wait(), loop).result(10)
            write(self, batch)

        monkeypatch.setattr(MooncakeTransport, "write", hanging)
        it.post()
        assert (await it.ended(2))[1] == (False, False)
        it.post()
        assert (await it.ended(3))[2] == (False, True)
        back.set()
        await it.renewed(1)
        it.post()
        assert (await it.ended(4))[3] == (True, True)


async def test_a_renewal_that_is_refused_with_its_queue_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One asked for while a call hangs is dropped with what waits; pages still in quarantine get the next one."""
    monkeypatch.setattr(mooncake_writer, "PATIENCE_S", 0.1)
    async with scene() as it:
        it.meet()
        it.hear()
        it.post()
        await it.ended(1)
        loop, back, write = asyncio.get_running_loop(), asyncio.Event(), MooncakeTransport.write

        def hanging(self: MooncakeTransport, batch: PageBatch) -> None:
            asyncio.run_coroutine_threadsafe(back.wait(), loop).result(10)
            write(self, batch)

        monkeypatch.setattr(MooncakeTransport, "write", hanging)
        it.post()
        await it.ended(2)
        it.writer.upkeep(num_quarantined=2)
        it.post()
        assert (await it.ended(3))[2] == (False, True)
        back.set()
        await it.renewed(1)
        it.writer.upkeep(num_quarantined=2)
        await it.renewed(2)


async def test_pages_in_quarantine_have_the_engine_renewed() -> None:
    """A source that was let go only later waits for an engine newer than its failure; one renewal is asked for."""
    async with scene() as it:
        it.writer.upkeep(num_quarantined=0)
        it.writer.upkeep(num_quarantined=2)
        it.writer.upkeep(num_quarantined=2)
        await it.renewed(1)
        it.meet()
        it.hear()
        it.post()
        await it.ended(1)
        assert sum(isinstance(event, SessionRebuilt) for event in it.events) == 1


async def test_a_peer_that_is_gone_gets_nothing() -> None:
    """Neither what is queued nor what its last announcement names."""
    async with scene() as it:
        it.meet()
        it.hear()
        it.writer.lose(DECODE)
        it.post()
        assert await it.ended(1) == [(False, True)]
        assert it.writer.failures(Incarnation("9" * 32)) == 0
