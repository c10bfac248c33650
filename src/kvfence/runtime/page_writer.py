"""Prefill's way into decode workers' pools: posted batches, written one at a time in one thread, and how each ended.

Here for shared memory; ``mooncake_writer.py`` has the other, whose sessions end and whose failures leave the source in
doubt. Read ``wire/transport.py`` first. Not for: what is posted when (``protocol/prefill.py``).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from kvfence.core.errors import TransportError
from kvfence.core.ids import Incarnation
from kvfence.core.layout import KVLayout
from kvfence.kv.storage import MemoryFile, map_shared
from kvfence.protocol.commands import Post
from kvfence.protocol.events import BatchEnded, Event
from kvfence.runtime.lifeline import Begin, MeetPeer
from kvfence.wire.frames import SessionOpened
from kvfence.wire.shm import Progress, SharedMemoryTransport
from kvfence.wire.transport import PageBatch, Transport

T = TypeVar("T", bound=Transport)


class PageWriter(ABC, Generic[T]):
    """Writes what is posted, in order.

    Owner:
        The event loop's thread calls; one thread of this object's own writes.
    """

    def __init__(self, report: Callable[[Event], None]) -> None:
        self.transports: dict[Incarnation, T] = {}
        self.thread = ThreadPoolExecutor(1, "writer")
        self.report = report
        self._posts: asyncio.Queue[tuple[Post, int] | Incarnation | None] = asyncio.Queue()

    @abstractmethod
    def meet(self, order: MeetPeer, fd: int | None) -> bool:
        """A decode worker lives; say whether its descriptor was taken."""

    @abstractmethod
    def lose(self, peer: Incarnation) -> None:
        """A decode worker is gone."""

    def hear(self, sender: Incarnation, opened: SessionOpened) -> None:
        """A decode worker announced its session."""

    def upkeep(self, *, num_quarantined: int) -> None:
        """Whatever is due with each heartbeat."""

    def failures(self, decode: Incarnation) -> int:
        """Batches to this peer that ended in doubt."""
        del decode
        return 0

    def post(self, post: Post) -> None:
        """Write a batch when those before it have ended."""
        self._posts.put_nowait((post, self.failures(post.decode)))

    async def run(self) -> None:
        """Write for ever."""
        while True:
            item = await self._posts.get()
            if isinstance(item, tuple):
                await self._write(*item)
            else:
                await self.maintain(item)

    async def maintain(self, peer: Incarnation | None) -> None:
        """Do what was queued in between: try the link to a peer, or (None) renew our own engine."""

    async def reach(self, post: Post) -> T:
        """Give the transport to a batch's destination.

        Raises:
            TransportError: there is none; nothing was posted.
        """
        transport = self.transports.get(post.decode)
        if transport is None:
            raise TransportError("that decode worker is gone", in_flight="no")
        return transport

    async def _write(self, post: Post, failures: int) -> None:
        """Write one batch in the writer's thread and report how it ended."""
        batch = PageBatch(post.attempt, post.batch, post.decode, post.source, post.destination, post.session)
        success, quiet = True, True
        try:
            transport = await self.reach(post)
            if self.failures(post.decode) != failures:
                raise TransportError("a batch before it ended in doubt", in_flight="no")
            await self.carry(transport, batch)
        except TransportError as error:
            success, quiet = False, error.in_flight == "no"
        self.report(BatchEnded(post.attempt, post.batch, success, quiet))
        if not quiet:
            await self.renew()

    async def carry(self, transport: T, batch: PageBatch) -> None:
        """Have the thread write, and wait for it."""
        await self.in_thread(transport.write, batch)

    async def renew(self) -> None:
        """Make sure that no source is read any more."""

    async def in_thread(self, call: Callable[..., object], *arguments: object) -> object:
        """Run a call in the writer's thread, after those before it."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, call, *arguments)


class SharedMemoryWriter(PageWriter[SharedMemoryTransport]):
    """Writes into pools that are mapped here. Holds: the mappings, until their peers are gone."""

    def __init__(
        self,
        begin: Begin,
        layout: KVLayout,
        memory: MemoryFile,
        report: Callable[[Event], None],
        on_progress: Progress | None = None,
    ) -> None:
        super().__init__(report)
        self.mapped: dict[Incarnation, MemoryFile] = {}
        self._begin = begin
        self._layout = layout
        self._memory = memory
        self._on_progress = on_progress

    def meet(self, order: MeetPeer, fd: int | None) -> bool:
        """Map a decode worker's pool before its first page is granted to us."""
        if order.pool is None or fd is None:
            return False
        self.mapped[order.peer] = map_shared(fd, order.pool.nbytes)
        self.transports[order.peer] = SharedMemoryTransport(
            self._memory.buffer,
            self.mapped[order.peer].buffer,
            self._layout,
            order.peer,
            self._on_progress,
            batch_pages_max=self._begin.settings.limits.batch_pages_max,
        )
        return True

    def lose(self, peer: Incarnation) -> None:
        """Let its pool go, in the writer's thread: a write in progress ends first."""
        transport, memory = self.transports.pop(peer, None), self.mapped.pop(peer, None)
        if transport is not None and memory is not None:
            self.thread.submit(_unmap, transport, memory)


def _unmap(transport: SharedMemoryTransport, memory: MemoryFile) -> None:
    transport.close()
    memory.close()
