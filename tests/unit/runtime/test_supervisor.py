"""The supervisor's own turns, without worker processes."""

import asyncio
import socket

import structlog

from kvfence.core.settings import Settings
from kvfence.protocol.guards import Rules
from kvfence.runtime.life import Life, Plan, Slot
from kvfence.runtime.lifeline import Beat, Lifeline, Report
from kvfence.runtime.supervisor import Supervisor


class _CancelledWhileRead(Lifeline[Report]):
    """A lifeline on which the watch is cancelled in the very turn in which a heartbeat arrives."""

    watch: "asyncio.Task[None]"

    async def receive(self) -> tuple[Report, int | None]:
        """Give the next frame, and have the watch cancelled before it runs again."""
        got = await super().receive()
        asyncio.get_running_loop().call_soon(self.watch.cancel)
        return got


async def test_a_heartbeat_that_comes_with_a_cancellation_does_not_undo_it() -> None:
    """Stopping ends every watch, also one that is just being handed a heartbeat."""
    supervisor = Supervisor(Plan(Settings(), "", Rules.all(), {}, 0), structlog.get_logger())
    ours, theirs = socket.socketpair()
    worker: Lifeline[Report] = Lifeline(theirs, Report)  # type: ignore[arg-type]
    process = Life(Slot("decode"))
    process.lifeline = lifeline = _CancelledWhileRead(ours, Report)  # type: ignore[arg-type]
    lifeline.watch = asyncio.create_task(supervisor._watch(process))
    worker.send(Beat())
    done, _ = await asyncio.wait({lifeline.watch}, timeout=5)
    lifeline.watch.cancel()
    assert done, "the watch goes on"
    assert lifeline.watch.cancelled()
    await supervisor.stop()
    lifeline.close()
    worker.close()
