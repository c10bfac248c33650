"""Prefill's way into decode workers' sessions over Mooncake: told late, ended, and in doubt where a batch fails.

Read ``page_writer.py`` first.
"""

import asyncio
import sys
import time
from collections.abc import Callable

from kvfence.core.errors import TransportError
from kvfence.core.ids import Incarnation
from kvfence.core.layout import KVLayout
from kvfence.kv.storage import MemoryFile
from kvfence.protocol.commands import Post
from kvfence.protocol.events import BatchEnded, Event, SessionRebuilt
from kvfence.runtime.lifeline import Begin, MeetPeer
from kvfence.runtime.page_writer import PageWriter
from kvfence.runtime.sessions import spec_of
from kvfence.wire.frames import SessionOpened
from kvfence.wire.mooncake import MooncakeTransport, Sender
from kvfence.wire.mooncake_engine import TIMEOUT_S
from kvfence.wire.transport import PageBatch

TELL_S = 1.0
"""How long a batch waits for its session to be announced: a grant may overtake the announcement."""
RETRY_S = 5.0
"""Pause after a link that could not be tried."""
PATIENCE_S = TIMEOUT_S + 1.0
"""Time after which a call that has not come back is in doubt: the client hears so, whatever the engine does."""


class MooncakeWriter(PageWriter[MooncakeTransport]):
    """Writes through one sending engine into the sessions that decode workers announce.

    Every life of a decode worker has its link tried once, before the first batch; while that fails, nothing is
    written to it. After a batch in doubt the engine is destroyed and rebuilt before another one is written; those that
    had been queued for the same peer meanwhile are never posted, so that one silent peer costs one time-out and not a
    row of them.
    """

    def __init__(self, begin: Begin, layout: KVLayout, memory: MemoryFile, report: Callable[[Event], None]) -> None:
        super().__init__(report)
        self._begin = begin
        self._layout = layout
        self._host = begin.settings.transport.decode_host
        self._sender = Sender(spec_of(begin.settings, "prefill"), memory.buffer)
        self._announced: dict[Incarnation, SessionOpened] = {}
        self._linked: set[Incarnation] = set()
        self._queued: set[Incarnation] = set()
        self._retry_at: dict[Incarnation, float] = {}
        self._heard = asyncio.Event()
        self._renewing = False

    def meet(self, order: MeetPeer, fd: int | None) -> bool:
        """Make a transport; its session will be announced."""
        del fd
        if order.role == "decode":
            limit = self._begin.settings.limits.batch_pages_max
            self.transports[order.peer] = MooncakeTransport(
                self._sender, self._layout, order.peer, batch_pages_max=limit
            )
        return False

    def lose(self, peer: Incarnation) -> None:
        """Write to it no more."""
        self.transports.pop(peer, None)
        self._announced.pop(peer, None)
        self._linked.discard(peer)
        self._retry_at.pop(peer, None)

    def failures(self, decode: Incarnation) -> int:
        """Batches to this peer that ended in doubt."""
        transport = self.transports.get(decode)
        return 0 if transport is None else transport.failures

    def hear(self, sender: Incarnation, opened: SessionOpened) -> None:
        """Take the session of a peer, if it is where decode workers are; a new peer's link is tried at once."""
        if opened.host != self._host:
            return
        self._announced[sender] = opened
        self._heard.set()
        transport = self.transports.get(sender)
        if transport is None:
            return
        transport.open_session(opened)
        if self._is_due(sender) and sender not in self._queued:
            self._queued.add(sender)
            self._posts.put_nowait(sender)

    def upkeep(self, *, num_quarantined: int) -> None:
        """Renew the engine while source pages wait for its end."""
        if num_quarantined and not self._renewing:
            self._renewing = True
            self._posts.put_nowait(None)

    async def maintain(self, peer: Incarnation | None) -> None:
        """Try a link, or renew."""
        if peer is None:
            await self.renew()
            self._renewing = False
            return
        self._queued.discard(peer)
        if peer in self.transports:
            await self._try_link(peer, self.transports[peer])

    def _is_due(self, peer: Incarnation) -> bool:
        return peer not in self._linked and time.monotonic() >= self._retry_at.get(peer, 0.0)

    async def _try_link(self, peer: Incarnation, transport: MooncakeTransport) -> None:
        if not self._is_due(peer):
            return
        if await self.in_thread(transport.check_link, time.monotonic_ns()):
            self._linked.add(peer)
            return
        opened = transport.opened
        where = "nowhere yet" if opened is None else f"{opened.host}:{opened.port}"
        sys.stderr.write(f"prefill: no page is sent to decode at {where}: link-is-sound does not hold\n")
        self._retry_at[peer] = time.monotonic() + RETRY_S
        await self.renew()

    async def reach(self, post: Post) -> MooncakeTransport:
        """Give the transport, once the batch's session is announced and the link has been tried."""
        transport = await super().reach(post)
        await self._told(post)
        announced = self._announced.get(post.decode)
        if announced is not None:
            transport.open_session(announced)
        await self._try_link(post.decode, transport)
        if post.decode not in self._linked:
            raise TransportError("the link to that decode worker is not sound", in_flight="no")
        return transport

    async def _told(self, post: Post) -> None:
        """Wait until the session of a batch is announced, for a while; one that is over is not waited for."""
        try:
            async with asyncio.timeout(TELL_S):
                while not self._knows(post):
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            return

    def _knows(self, post: Post) -> bool:
        transport, announced = self.transports.get(post.decode), self._announced.get(post.decode)
        if transport is None or transport.is_past(post.session):
            return True
        return announced is not None and announced.session == post.session

    async def carry(self, transport: MooncakeTransport, batch: PageBatch) -> None:
        """Have the thread write, and wait for it, but not for ever."""
        writing = asyncio.ensure_future(self.in_thread(transport.write, batch))
        await asyncio.wait({writing}, timeout=PATIENCE_S)
        if not writing.done():
            transport.failures += 1
            writing.add_done_callback(_forget_error)
            raise TransportError("a batch has not come back", "unknown")
        writing.result()

    async def renew(self) -> None:
        """Destroy our own engine and open another: no source is read any more.

        A call that has not come back is waited for, and what is posted meanwhile is refused, not kept waiting.
        """
        rebuilding = asyncio.get_running_loop().run_in_executor(self.thread, self._sender.rebuild)
        while not rebuilding.done():
            await asyncio.wait({rebuilding}, timeout=PATIENCE_S)
            if not rebuilding.done():
                self._refuse_queued()
        self.report(SessionRebuilt(rebuilding.result()))

    def _refuse_queued(self) -> None:
        """Report what waits as never posted; what else was queued is asked for again when it is next due."""
        while not self._posts.empty():
            item = self._posts.get_nowait()
            if item is None:
                self._renewing = False
            elif isinstance(item, tuple):
                self.report(BatchEnded(item[0].attempt, item[0].batch, success=False, source_quiet=True))
            else:
                self._queued.discard(item)


def _forget_error(ended: "asyncio.Future[object]") -> None:
    """Take the error of a call whose outcome has been reported, so that nobody says it was never seen."""
    if not ended.cancelled():
        ended.exception()
