"""Page writes that go wrong: torn, corrupted, or late, each in some of the batches, as a seed draws them.

Small batches are left alone, so that short requests are answered right. Not for: batches that are about the wrong pages
(``prefill_worker.py`` names others before they are posted).
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.ids import AttemptId
from kvfence.core.layout import KVLayout
from kvfence.core.tags import HEAD_BYTES, TAIL_BYTES
from kvfence.kv.storage import Bytes, PoolBuffer
from kvfence.protocol.commands import Post
from kvfence.protocol.events import BatchEnded
from kvfence.ranges.catalogue import PAGES_MIN
from kvfence.ranges.orders import Orders
from kvfence.runtime.page_writer import SharedMemoryWriter
from kvfence.wire.shm import SharedMemoryTransport
from kvfence.wire.transport import PageBatch

FLIP_EVERY_BYTES = 4
LATE_S = 10.0
"""When a late batch lands at the latest, wherever that is by then."""

HELD_MAX, CHOSEN_MAX = 64, 256


class Dice(Struct):
    """Draws what goes wrong."""

    rate: float
    rng: random.Random

    def fall(self, num_pages: int) -> bool:
        """Does a batch of so many pages go wrong?"""
        return num_pages >= PAGES_MIN and self.rng.random() < self.rate


def dice_of(orders: Orders) -> Dice:
    """Give the dice of these orders."""
    return Dice(orders.rate, random.Random(f"range/{orders.seed}"))


def half_parts(layout: KVLayout) -> tuple[slice, ...]:
    """Give what a torn write lands of a record: the head, the first half of every segment's tokens, and the tail."""
    halves = [
        slice(offset, offset + segment.token_bytes * (layout.page_size // 2))
        for segment, offset in zip(layout.segments, layout.offsets, strict=True)
    ]
    return (slice(0, HEAD_BYTES), *halves, slice(layout.tail_offset, layout.tail_offset + TAIL_BYTES))


class FaultyWriter(SharedMemoryWriter):
    """Writes pages, some of them wrong. Holds: nothing of a pool between two writes."""

    def __init__(self, *args: Any, dice: Dice) -> None:
        super().__init__(*args)
        self.dice = dice

    def records(self, batch: PageBatch) -> tuple[Bytes, Bytes]:
        """View both pools. Shapes: [num_pages, record_bytes] each."""
        sizes = (memory.nbytes // self._layout.record_bytes for memory in (self._memory, self.mapped[batch.decode]))
        buffers = (self._memory.buffer, self.mapped[batch.decode].buffer)
        ours, theirs = (
            PoolBuffer(buffer, self._layout, size).records for buffer, size in zip(buffers, sizes, strict=True)
        )
        return ours, theirs

    def copy(self, batch: PageBatch, parts: Sequence[slice]) -> None:
        """Land parts of every record of a batch."""
        ours, theirs = self.records(batch)
        for source, destination in zip(batch.source, batch.destination, strict=True):
            for part in parts:
                theirs[destination, part] = ours[source, part]


class TearingWriter(FaultyWriter):
    """Reports a batch as written of which half of every page but the last never lands."""

    async def carry(self, transport: SharedMemoryTransport, batch: PageBatch) -> None:
        """Write, or tear."""
        if self.dice.fall(len(batch.source)):
            halves = replace(batch, source=batch.source[:-1], destination=batch.destination[:-1])
            await self.in_thread(self.copy, halves, half_parts(self._layout))
            batch = replace(batch, source=batch.source[-1:], destination=batch.destination[-1:])
        await super().carry(transport, batch)


class CorruptingWriter(FaultyWriter):
    """Flips bits of every page of a batch but the last, whose unused slots the stamps speak for."""

    async def carry(self, transport: SharedMemoryTransport, batch: PageBatch) -> None:
        """Write, and perhaps spoil what was written."""
        await super().carry(transport, batch)
        if self.dice.fall(len(batch.source)):
            await self.in_thread(self._flip, batch)

    def _flip(self, batch: PageBatch) -> None:
        theirs = self.records(batch)[1]
        for page in batch.destination[:-1]:
            for segment, offset in zip(self._layout.segments, self._layout.offsets, strict=True):
                num_bytes = segment.token_bytes * self._layout.page_size
                for _ in range(max(1, num_bytes // FLIP_EVERY_BYTES)):
                    theirs[page, offset + self.dice.rng.randrange(num_bytes)] ^= np.uint8(
                        1 << self.dice.rng.randrange(6)
                    )


class Held(Struct):
    """A batch whose heads have landed and whose bytes have not. ``go``: set when they shall."""

    batch: PageBatch
    go: asyncio.Event
    given_up: bool = False
    on_their_way: list[Bytes] = []


class LateWriter(FaultyWriter):
    """Holds every batch of some requests; those of one that is given up land when its pages are somebody else's.

    That is the worst moment a late write has; a real one finds it by chance.
    Holds: what is held, and of the last requests which of them are to be late.
    """

    def __init__(self, *args: Any, dice: Dice, held_s: float, start: Callable[[Any], Any]) -> None:
        super().__init__(*args, dice=dice)
        self._held_s, self._start = held_s, start
        self._held: list[Held] = []
        self._chosen: dict[AttemptId, bool] = {}

    def post(self, post: Post) -> None:
        """Write in order, or hold."""
        if post.attempt not in self._chosen:
            self._chosen[post.attempt] = self.dice.fall(len(post.source))
            self._chosen = dict([*self._chosen.items()][-CHOSEN_MAX:])
        if not self._chosen[post.attempt] or len(self._held) >= HELD_MAX:
            super().post(post)
            return
        batch = PageBatch(post.attempt, post.batch, post.decode, post.source, post.destination, post.session)
        held = Held(batch, asyncio.Event())
        self._held.append(held)
        self._start(self._hold(held))

    async def _hold(self, held: Held) -> None:
        batch = held.batch
        await self.in_thread(self._depart, held)
        await _within(held.go, self._held_s)
        if held.given_up and not held.go.is_set():
            await _within(held.go, LATE_S)
        alive = batch.decode in self.mapped
        if alive:
            await self.in_thread(self._arrive, held)
        self._held.remove(held)
        self.report(BatchEnded(batch.attempt, batch.batch, alive, True))

    def _depart(self, held: Held) -> None:
        """Land the heads, and take the bytes on their way: what becomes of the source changes them no more."""
        ours, theirs = self.records(held.batch)
        held.on_their_way = [ours[page].copy() for page in held.batch.source]
        for record, destination in zip(held.on_their_way, held.batch.destination, strict=True):
            theirs[destination, :HEAD_BYTES] = record[:HEAD_BYTES]

    def _arrive(self, held: Held) -> None:
        """Land everything behind the heads, in order."""
        theirs = self.records(held.batch)[1]
        for record, destination in zip(held.on_their_way, held.batch.destination, strict=True):
            for part in (self._layout.body, slice(self._layout.tail_offset, None)):
                theirs[destination, part] = record[part]

    def give_up(self, attempt: AttemptId) -> None:
        """The request is over before its batches have landed."""
        for held in self._held:
            held.given_up = held.given_up or held.batch.attempt == attempt

    def adopted(self, attempt: AttemptId, pages: Iterable[int]) -> None:
        """Decode has adopted these pages for an attempt: whatever was late for one of them comes now."""
        taken = set(pages)
        for held in self._held:
            if held.batch.attempt != attempt and held.given_up and not taken.isdisjoint(held.batch.destination):
                held.go.set()


async def _within(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
