"""The control: one process that admits, prefills and decodes in one pool, with the same mistake and no guard.

A request that does not fit keeps its error for later and is drained as one placeholder token, as in the incident's
engine. Here that is harmless: whoever reads the pages is whoever refused, and asks its own pending error when the
placeholder's pass ends. Implements ``runtime.generation.Generations``; no tags, stamps or hand-offs.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from msgspec import Struct

from kvfence.core.ids import RequestId
from kvfence.core.request import Request
from kvfence.incident.workload import PLACEHOLDER
from kvfence.models.executor import Executor, PassRow
from kvfence.protocol.admission import Capacity
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, TokensOut, WorkerState


class Running(Struct):
    """One request in the batch. ``pending``: the error that its end will give, as the incident's ``to_finish``."""

    request: Request
    token_ids: list[int]
    pages: list[int]
    pending: EndReason | None = None
    num_kv: int = 0


class SingleNode:
    """One engine and its pool; first come, first served, a request's pages all or nothing.

    Owner:
        One event loop; passes run in a thread of their own, one at a time.
    """

    def __init__(self, executor: Executor, num_pages: int, context_tokens: int) -> None:
        self.capacity = Capacity(executor.layout.page_size, context_tokens, num_pages, num_pages)
        self._executor = executor
        self._free = list(range(num_pages))
        self._changed = asyncio.Condition()
        self._thread = ThreadPoolExecutor(1, "single")

    @property
    def draining(self) -> bool:
        """It ends at once, or not at all."""
        return False

    def workers(self) -> tuple[WorkerState, ...]:
        """The one worker."""
        num_tokens = self.capacity.decode_pages * self.capacity.page_size
        return (WorkerState("single", "", "ready", num_tokens, 0, worker="single-0"),)

    async def generate(self, request: Request) -> AsyncGenerator[TokensOut | EndOut, None]:
        """Run one request to its end."""
        running = await self._admit(request)
        try:
            for index in range(request.max_tokens):
                token = await self._pass(running, index)
                if running.pending is not None:  # the node asks its own error: nothing of the placeholder leaves
                    yield EndOut(running.pending)
                    return
                yield TokensOut((token,))
                if token in self._executor.eos_token_ids and not request.sampling.ignore_eos:
                    yield EndOut(EndReason.STOP)
                    return
            yield EndOut(EndReason.LENGTH)
        finally:
            await self._release(running)

    async def generate_together(
        self, requests: Sequence[Request]
    ) -> AsyncGenerator[tuple[int, TokensOut | EndOut], None]:
        """Run several, one after the other."""
        for index, request in enumerate(requests):
            async with aclosing(self.generate(request)) as items:
                async for item in items:
                    yield index, item

    def leave(self, request: RequestId) -> None:
        """Let it run to its end: whoever reads ignores it."""

    async def _admit(self, request: Request) -> Running:
        """Queue it; what does not fit goes the same way as everything else, as a placeholder."""
        whole = self.capacity.num_pages(len(request.token_ids) + request.max_tokens)
        fits = whole <= self.capacity.decode_pages
        token_ids = list(request.token_ids) if fits else [PLACEHOLDER]
        pending = None if fits else EndReason.DOES_NOT_FIT
        num_pages = whole if fits else 1
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._free) >= num_pages)
            pages = [self._free.pop() for _ in range(num_pages)]
        return Running(request, token_ids, pages, pending)

    async def _pass(self, running: Running, index: int) -> int:
        stop = running.num_kv + len(running.token_ids)
        pages = running.pages[: self.capacity.num_pages(stop)]
        row = PassRow(running.token_ids, running.num_kv, pages, running.request.sampling, index)
        loop = asyncio.get_running_loop()
        (token,) = await loop.run_in_executor(self._thread, self._executor.run, [row])
        running.num_kv, running.token_ids = stop, [token or 0]
        return token or 0

    async def _release(self, running: Running) -> None:
        async with self._changed:
            self._free += reversed(running.pages)
            self._changed.notify_all()

    def close(self) -> None:
        """End the pass's thread."""
        self._thread.shutdown(wait=True)
