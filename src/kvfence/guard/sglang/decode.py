"""What the guard remembers at decode: what was reserved for each room, what prefill promised, what is refused or held.

The engine's scheduler and its reader of messages come here. Bounded: reservations by ``ROOMS_MAX``, refusals by
``REFUSALS_MAX``; whose entry was dropped is refused. What became of pages that were not adopted: ``quarantine.py``.
"""

import threading
import time
from collections import OrderedDict
from typing import Any

import numpy as np
from msgspec import Struct

from kvfence.core.ids import AttemptId, Incarnation, new_incarnation
from kvfence.guard.handoff import Expected, Limits, Verdict, verify
from kvfence.guard.messages import VERSION, Hello, Offer, Promise, RefusedAtPrefill
from kvfence.guard.sglang.memory import PageMemory, Pages

REFUSALS_MAX = 4096

EARLY_S = 5.0
"""For which prefill's refusal waits for its room to come here; who comes later hears it as soon as it offers pages."""

ROOMS_MAX = 65_536
"""Reservations that are remembered; an engine holds far fewer open."""


class Refusal(Struct, frozen=True):
    """Why a request ends, as its client is told."""

    message: str
    status: int


class Reserved(Struct):
    """One room: what was reserved for which request, and what came. ``num_tokens``: with what decode has already.

    ``row``: what travels beside the pages. ``receiver``: the engine's, which knows who was offered them; ``req``: its
    request. ``is_failed``: the engine has given the transfer up, on every rank, whatever this rank found.
    """

    request: str
    num_tokens: int
    receiver: Any = None
    req: Any = None
    offer: Offer | None = None
    pages: Pages | None = None
    row: int = 0
    promise: Promise | None = None
    verdict: Verdict | None = None
    digest: str | None = None
    is_failed: bool = False

    @property
    def is_owed(self) -> bool:
        """Were pages offered, and not adopted?"""
        adopted = self.verdict is not None and self.verdict.holds and not self.is_failed
        return self.offer is not None and not adopted

    @property
    def is_vouched_for(self) -> bool:
        """Has prefill said that all it posted has landed, and do the bytes not say otherwise?"""
        if self.offer is None or self.promise is None or self.promise.attempt != self.offer.attempt:
            return False
        return not self.is_torn

    @property
    def is_torn(self) -> bool:
        """Are the bytes that landed not those that were sent? Then somebody else writes there."""
        verdict = self.verdict
        return verdict is not None and not verdict.holds and verdict.decisions[-1].guard == "digest-matches"


class DecodeState:
    """One decode rank's memory of hand-offs."""

    def __init__(self, memory: PageMemory, limits: Limits, mode: str) -> None:
        self.incarnation: Incarnation = new_incarnation()
        self._memory = memory
        self.limits, self._mode = limits, mode
        self._lock = threading.Lock()
        self._counter = 0
        self._rooms: OrderedDict[int, Reserved] = OrderedDict()
        self._owed: OrderedDict[str, Reserved] = OrderedDict()
        self._refused: OrderedDict[int, tuple[Refusal, float]] = OrderedDict()

    @property
    def hello(self) -> Hello:
        """Give what a prefill is told of this decode."""
        limits = self.limits
        own = (VERSION, self.incarnation, self._mode, self._memory.layout)
        return Hello(*own, limits.pool_tokens, limits.context_tokens)

    def blank(self, pages: Pages, row: int | None) -> None:
        """Nobody writes these pages: whoever reads them finds noughts, not what their last holder left."""
        self._memory.blank(pages, row)

    def reserve(self, room: int, reserved: Reserved) -> None:
        """Note what the engine reserves for a room."""
        with self._lock:
            self._rooms[room] = reserved
            while len(self._rooms) > ROOMS_MAX:
                self._rooms.popitem(last=False)

    def offer(self, room: int, pages: Pages, row: int, prefix_tokens: int) -> Offer | None:
        """Mint an attempt for pages that are being offered, the same for every rank that they are offered to.

        None for a room that reserved nothing.
        """
        with self._lock:
            reserved = self._rooms.get(room)
            if reserved is None:
                return None
            if reserved.offer is not None:
                return reserved.offer
            self._counter += 1
            attempt = AttemptId(self.incarnation, self._counter)
            reserved.offer = Offer(attempt, room, reserved.num_tokens, prefix_tokens, len(pages))
            reserved.pages, reserved.row = np.array(pages, copy=True), row
            return reserved.offer

    def note_promise(self, promise: Promise) -> bool:
        """Remember what prefill says it sent; the last word counts, and only of a room that is open."""
        with self._lock:
            reserved = self._rooms.get(promise.room)
            if reserved is not None:
                reserved.promise = promise
            return reserved is not None

    def note_refused(self, refused: RefusedAtPrefill, *, is_here: bool) -> bool:
        """Remember prefill's refusal, for a moment also of a room that has not come here yet (``is_here``).

        False for one of another attempt than the room's: who has offered pages is told by that attempt's name.
        """
        reserved = self._rooms.get(refused.room)
        offer = reserved.offer if reserved is not None else None
        if refused.attempt != (offer.attempt if offer is not None else None):
            return False
        until_s = float("inf") if is_here else time.monotonic() + EARLY_S
        self.refuse(refused.room, Refusal(refused.message, refused.status), until_s)
        return True

    def refuse(self, room: int, refusal: Refusal, until_s: float = float("inf")) -> None:
        """Remember why a room ends."""
        with self._lock:
            self._refused[room] = (refusal, until_s)
            while len(self._refused) > REFUSALS_MAX:
                self._refused.popitem(last=False)

    def refusal(self, room: int | None) -> Refusal | None:
        """Give why a room was refused; None where it was not."""
        refusal, until_s = self._refused.get(room, (None, 0.0)) if room is not None else (None, 0.0)
        return refusal if time.monotonic() < until_s else None

    def reserved(self, room: int) -> Reserved | None:
        """Give what is known of a room that is open."""
        return self._rooms.get(room)

    def judge(self, room: int, *, enforced: bool) -> tuple[Verdict, bool] | None:
        """Compare what landed with what was promised and offered, once a room; None for a room that offered nothing.

        The second answer: is this the first time?
        """
        reserved = self._rooms.get(room)
        if reserved is None or reserved.offer is None or reserved.pages is None:
            return None
        if reserved.verdict is not None:
            return reserved.verdict, False
        expected = Expected(reserved.offer.attempt, reserved.num_tokens, reserved.offer.num_pages, self._memory.layout)
        pages, row, found = reserved.pages, reserved.row, reserved

        def digest() -> str:
            found.digest = self._memory.digest_of(pages, row)
            return found.digest

        reserved.verdict = verify(expected, reserved.promise, digest, enforced=enforced)
        return reserved.verdict, True

    def forget(self, room: int) -> None:
        """The engine is done with a room's transfer; it may still have to tell its client why, and give pages back."""
        with self._lock:
            reserved = self._rooms.pop(room, None)
            if reserved is not None and reserved.offer is not None:
                self._owed[reserved.request] = reserved
                while len(self._owed) > ROOMS_MAX:
                    self._owed.popitem(last=False)

    def fail(self, request: str, room: int) -> None:
        """The engine ends a request with an error: what was offered for it is not adopted, whatever was found of it."""
        with self._lock:
            reserved = self._owed.get(request) or self._rooms.get(room)
            if reserved is not None and reserved.request == request:
                reserved.is_failed = True

    def take_owed(self, request: str, room: int) -> Reserved | None:
        """The engine gives a request's pages back: give what is still owed for them, once; None where nothing is."""
        with self._lock:
            reserved = self._owed.pop(request, None)
            if reserved is None:
                reserved = self._rooms.get(room)
                if reserved is None or reserved.request != request or not reserved.is_owed:
                    return None
                del self._rooms[room]
            return reserved if reserved.is_owed else None

    @property
    def num_open(self) -> int:
        """Give how many transfers may be under way: pages were offered, and nothing has come of it yet."""
        with self._lock:
            return sum(1 for each in self._rooms.values() if each.offer is not None and each.verdict is None)

    def told(self, room: int) -> None:
        """A refused room's client has been told; whoever uses it again begins anew."""
        with self._lock:
            self._refused.pop(room, None)
