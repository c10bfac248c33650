"""A prefill worker in this process: what becomes of an attempt given up in its pass, and of a pass that fails."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.core.request import SamplingParams
from kvfence.core.settings import Settings
from kvfence.kv.storage import open_shared, pool_bytes
from kvfence.models.executor import PassRow
from kvfence.protocol.admission import Capacity
from kvfence.protocol.events import PeerUp
from kvfence.protocol.guards import Rules
from kvfence.protocol.messages import Abort, Dispatch, EndReason, Envelope, Grant
from kvfence.runtime.lifeline import Begin
from kvfence.runtime.prefill_worker import PrefillWorker
from kvfence.runtime.scheduler import next_chunks
from kvfence.wire.control import make_private_directory
from kvfence.wire.frames import Frame, Prompt
from tests.integration.runtime.arithmetic import ArithmeticExecutor, arithmetic_views

PREFILL, DECODE, GATEWAY = (Incarnation(digit * 32) for digit in "abc")
NUM_PAGES = 8
ATTEMPT = AttemptId(GATEWAY, 1)
MARKER = "a-prompt-that-nobody-may-see"


class HeldExecutor(ArithmeticExecutor):
    """Begins a pass and ends it when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def run(self, rows: Sequence[PassRow]) -> list[int | None]:
        """Run one pass."""
        self.begun.set()
        assert self.go_on.wait(10)
        return super().run(rows)


class Prefill(PrefillWorker):
    """Prefill without torch."""

    def views(self) -> list[Any]:
        """Views without torch."""
        return arithmetic_views(self.pool, self.layout)


class BrokenExecutor(ArithmeticExecutor):
    """Fails, with a message that holds what it worked on."""

    def run(self, rows: Sequence[PassRow]) -> list[int | None]:
        """Fail."""
        raise RuntimeError(f"{MARKER} {rows}")


class Over(Exception):
    """The test is over: its worker's tasks end."""


@asynccontextmanager
async def started_worker(executor: ArithmeticExecutor, folder: Path) -> AsyncIterator[Prefill]:
    """Run a worker that knows a gateway and a decode worker; what it holds is closed afterwards."""
    begin = Begin("prefill", PREFILL, str(folder), "", Settings(), Rules.all(), NUM_PAGES)
    lifeline: Any = None
    worker = Prefill(begin, lifeline, executor, open_shared(pool_bytes(executor.layout, NUM_PAGES)))
    try:
        async with asyncio.TaskGroup() as worker.tasks:
            worker.start(Capacity(executor.layout.page_size, 128, NUM_PAGES, NUM_PAGES + 1))
            for peer in (GATEWAY, DECODE):
                worker.loop.feed(PeerUp(peer, writes=False))
            yield worker
            raise Over
    except* Over:
        pass
    finally:
        worker.control.close()


def dispatch(worker: Prefill) -> None:
    """Ask for a prompt of three pages."""
    grant = Grant(ATTEMPT, 1, (0, 1, 2), worker.layout.fingerprint)
    envelope = Envelope(GATEWAY, PREFILL, Dispatch(ATTEMPT, DECODE, grant, 40, 10**10))
    prompt = Prompt(list(range(40)), SamplingParams(temperature=0.0), 0)
    worker.loop.feed(worker.receive(Frame(GATEWAY, envelope, prompt), envelope))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for sockets, whose path is short enough."""
    made = make_private_directory()
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("stray", [False, True])
async def test_pages_of_an_aborted_attempt_are_compared_until_its_pass_has_ended(folder: Path, stray: bool) -> None:
    """A stray write into them during the pass quarantines them, although nobody waits for their tokens any more."""
    executor = HeldExecutor()
    async with started_worker(executor, folder) as worker:
        dispatch(worker)
        running = asyncio.create_task(worker._run(next_chunks(worker._prompts(), 512)))
        try:
            await asyncio.to_thread(executor.begun.wait, 10)
            (lot,) = [h.lot for h in worker.loop.node.handoffs.values() if h.lot is not None]
            abort = Envelope(DECODE, PREFILL, Abort(ATTEMPT))
            worker.loop.feed(worker.receive(Frame(DECODE, abort), abort))
            if stray:
                worker.pool.heads[lot.pages[1]] = 0
        finally:
            executor.go_on.set()
            await running
    pool = worker.loop.node.pool
    assert (pool.num_quarantined, pool.num_free) == ((3, NUM_PAGES - 3) if stray else (0, NUM_PAGES))
    assert len(worker.table) == 0


async def test_a_pass_that_fails_is_counted_and_its_place_told(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The request ends, the operator learns where the model failed, and the error's own text is kept back."""
    async with started_worker(BrokenExecutor(), folder) as worker:
        dispatch(worker)
        await worker._run(next_chunks(worker._prompts(), 512))
    said = capfd.readouterr().err
    assert worker.counters["model_errors"] == 1
    assert "RuntimeError" in said
    assert Path(__file__).name in said
    assert MARKER not in said
    assert {h.reason for h in worker.loop.node.handoffs.values()} == {EndReason.MODEL_ERROR}
    assert worker.loop.node.pool.num_free == NUM_PAGES
