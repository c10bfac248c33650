"""What the guard remembers at prefill: which decodes have one, what each attempt expects, what has been sent of it.

Two threads come here: the engine's scheduler, which sends pages, and its reader of messages. Bounded by ``ROOMS_MAX``,
``REFUSALS_MAX`` and the number of decodes.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.ids import AttemptId, Incarnation, new_incarnation
from kvfence.guard.handoff import Limits
from kvfence.guard.messages import VERSION, Hello, Offer, Promise, RefusedAtPrefill, Revoke, Welcome
from kvfence.guard.settings import Mode
from kvfence.guard.sglang.engine import TOLD
from kvfence.guard.sglang.memory import Digest, PageMemory, Pages

REFUSALS_MAX = 4096
"""Refused rooms that are remembered, so that a decode which asks late is told too; the oldest is forgotten."""

REFUSED_S = 300.0
"""For which a refused room is: by then its decode has given up by itself, and another request may have the room."""

ROOMS_MAX = 65_536
"""Offers that are remembered; one that was forgotten is sent nothing."""

REVOKED_MAX = 65_536
"""Revoked attempts that are remembered; decode's words come in order, so that an older one is not offered again."""

Endpoint = tuple[str, int]
Sessions = frozenset[str]


class _Sending(Struct):
    """One room: who expects it, in which session, and what has been sent.

    ``receivers``: the sessions that the engine had when the first pages were posted.
    ``num_tokens``, ``row``: known with the last chunk.
    """

    offers: dict[Endpoint, Offer]
    sessions: dict[Endpoint, str]
    receivers: frozenset[str] | None = None
    digest: Digest | None = None
    num_tokens: int = 0
    row: int | None = None


class PrefillState:
    """One prefill rank's memory of hand-offs."""

    def __init__(self, memory: PageMemory, limits: Limits, mode: str) -> None:
        self.incarnation: Incarnation = new_incarnation()
        self._memory = memory
        self.limits, self._mode = limits, mode
        self._lock = threading.Lock()
        self._peers: dict[Endpoint, Hello] = {}
        self._sessions: dict[Endpoint, str] = {}
        self._unsure: set[str] = set()
        self._rooms: OrderedDict[int, _Sending] = OrderedDict()
        self._refused: OrderedDict[int, tuple[RefusedAtPrefill, float]] = OrderedDict()
        self._deaf: set[Endpoint] = set()
        self._revoked: OrderedDict[AttemptId, None] = OrderedDict()
        self._asked: OrderedDict[AttemptId, None] = OrderedDict()
        self._given_up: OrderedDict[int, None] = OrderedDict()
        self._open: OrderedDict[int, None] = OrderedDict()

    # ---- what decode says ----

    def meet(self, hello: Hello, endpoint: Endpoint, session: str) -> Welcome | None:
        """Remember a decode, the latest life at its address, and where its pages are written to.

        None for another version, which is sent nothing.
        """
        with self._lock:
            self._deaf.discard(endpoint)
            self._peers.pop(endpoint, None)
            if self._sessions.get(endpoint, session) != session:  # the old one has ended, and what was unsure in it
                self._unsure.discard(self._sessions[endpoint])
            self._sessions[endpoint] = session
            if hello.version != VERSION:
                return None
            self._peers[endpoint] = hello
        limits = self.limits
        own = (VERSION, self.incarnation, self._mode, self._memory.layout)
        return Welcome(*own, limits.pool_tokens, limits.context_tokens)

    def expect(self, offer: Offer, endpoint: Endpoint, session: str) -> RefusedAtPrefill | None:
        """Remember what a decode that we have met expects of a room; give the refusal where there is one already."""
        with self._lock:
            self._deaf.discard(endpoint)
            self._asked[offer.attempt] = None
            while len(self._asked) > ROOMS_MAX:
                self._asked.popitem(last=False)
            hello = self._peers.get(endpoint)
            refused = self._why_not(offer.room, hello, session)
            if refused is not None:
                return replace(refused, attempt=offer.attempt)
            if hello is not None and offer.attempt not in self._revoked:
                self._given_up.pop(offer.room, None)
                sending = self._rooms.setdefault(offer.room, _Sending({}, {}))
                sending.offers[endpoint], sending.sessions[endpoint] = offer, session
                while len(self._rooms) > ROOMS_MAX:
                    self._rooms.popitem(last=False)
            return None

    def _why_not(self, room: int, hello: Hello | None, session: str) -> RefusedAtPrefill | None:
        """Give why a decode is sent nothing of a room; None where it is, or has not said hello.

        Where pages are laid out in another way, what is written lands anywhere; who comes while pages are being sent
        has missed some.
        """
        refused, since_s = self._refused.get(room, (None, 0.0))
        if refused is not None and time.monotonic() - since_s < REFUSED_S:
            return refused
        if hello is None or self._mode != Mode.ENFORCE:
            return None
        own, sending = self._memory.layout, self._rooms.get(room)
        if hello.layout != own:
            reason = f"kvfence: prefill lays out its pages as {own}, decode as {hello.layout}"
            return RefusedAtPrefill(room, TOLD, reason)
        if sending is not None and sending.receivers is not None and session not in sending.receivers:
            return RefusedAtPrefill(room, TOLD, "kvfence: this room is being sent to another decode")
        return None

    def revoke(self, revoked: Revoke) -> Endpoint | None:
        """Nobody waits for this attempt any more, whether its offer came or not: nothing more is sent for it.

        Gives where the answer goes; None where its decode has not said hello in this life.
        """
        with self._lock:
            self._revoked[revoked.attempt] = None
            self._given_up[revoked.room] = None
            for remembered in (self._revoked, self._given_up):
                while len(remembered) > REVOKED_MAX:
                    remembered.popitem(last=False)
            sending = self._rooms.get(revoked.room)
            if sending is not None:
                sending.offers = {at: one for at, one in sending.offers.items() if one.attempt != revoked.attempt}
                if not sending.offers:
                    del self._rooms[revoked.room]
            sender = revoked.attempt.gateway
            return next((at for at, hello in self._peers.items() if hello.sender == sender), None)

    def is_unsure(self, attempt: AttemptId, endpoint: Endpoint) -> bool:
        """Is it unknown when writes of this attempt end?

        It is where one to this decode has failed in its session, and for an attempt that a former life was asked for.
        """
        return attempt not in self._asked or self._sessions.get(endpoint) in self._unsure

    # ---- what the engine does ----

    def note_failed(self, session: str) -> None:
        """A write has ended in non-success: what was posted may land yet."""
        with self._lock:
            self._unsure.add(session)

    def refuse(self, refused: RefusedAtPrefill) -> list[tuple[Endpoint, RefusedAtPrefill]]:
        """Remember that a room is refused; give every decode that waits for it, and where none does yet, that may."""
        with self._lock:
            self._refused[refused.room] = (refused, time.monotonic())
            self._refused.move_to_end(refused.room)
            while len(self._refused) > REFUSALS_MAX:
                self._refused.popitem(last=False)
            sending = self._rooms.pop(refused.room, None)
            if sending is not None and sending.offers:
                return [(at, replace(refused, attempt=offer.attempt)) for at, offer in sending.offers.items()]
            return [(at, refused) for at in self._peers if at not in self._deaf]

    def note_deaf(self, endpoint: Endpoint) -> None:
        """A decode takes no messages: it is told of nothing that it did not ask, until it is heard again."""
        with self._lock:
            self._deaf.add(endpoint)

    def receivers(self, room: int, sessions: Collection[str], *, posting: bool) -> tuple[Sessions, Sessions]:
        """Give which of the engine's receivers of a room stay its receivers, and which of these wait for its pages.

        Who comes after the first pages were posted is none: by who they are the engine keeps a room's chunks in order.
        """
        with self._lock:
            sending = self._rooms.get(room)
            if sending is None:
                return frozenset(sessions), frozenset()
            if sending.receivers is None and posting and sessions:
                sending.receivers = frozenset(sessions)
            kept = frozenset(sessions) if sending.receivers is None else sending.receivers
            return kept, frozenset(sending.sessions[at] for at in sending.offers)

    def admit(self, room: int) -> bool:
        """A request that nobody refused uses this room: what was refused in it before is over.

        Returns False where another request is open in it, whose pages would be taken for this one's.
        """
        with self._lock:
            if room in self._open:
                return False
            self._open[room] = None
            while len(self._open) > ROOMS_MAX:
                self._open.popitem(last=False)
            self._refused.pop(room, None)
            return True

    def layout_at(self, endpoint: Endpoint) -> str:
        """Give how a decode that we have met lays out its pages."""
        hello = self._peers.get(endpoint)
        return hello.layout if hello is not None else ""

    def attempt_in(self, room: int) -> AttemptId | None:
        """Give the attempt that a room is sent for; None where nobody waits for it."""
        sending = self._rooms.get(room)
        return next((offer.attempt for offer in sending.offers.values()), None) if sending is not None else None

    def was_given_up(self, room: int) -> bool:
        """Has decode asked for this room, and given it up?"""
        return room in self._given_up

    def is_expected(self, room: int) -> bool:
        """Has a decode with a guard asked for this room?"""
        return room in self._rooms

    def note_tokens(self, room: int, num_tokens: int) -> None:
        """Note how many tokens of the prompt have pages, with the last chunk."""
        sending = self._rooms.get(room)
        if sending is not None:
            sending.num_tokens = num_tokens

    def note_pages(self, room: int, pages: Pages, row: int | None) -> None:
        """Read pages that are about to be sent; their last pass has ended. ``row``: beside the last of them."""
        sending = self._rooms.get(room)
        if sending is not None:
            if sending.digest is None:
                sending.digest = Digest(self._memory)
            sending.digest.add(pages)
            sending.row = row

    def promise(self, room: int, endpoint: Endpoint) -> Promise | None:
        """Say what was sent of a room to one decode; None where that decode has no guard."""
        sending = self._rooms.get(room)
        offer = sending.offers.get(endpoint) if sending is not None else None
        if sending is None or offer is None or sending.digest is None or sending.row is None:
            return None
        return Promise(
            attempt=offer.attempt,
            room=room,
            sender=self.incarnation,
            num_tokens=sending.num_tokens,
            num_pages=sending.digest.num_pages,
            layout=self._memory.layout,
            digest=sending.digest.hex(sending.row),
            pool_tokens=self.limits.pool_tokens,
            context_tokens=self.limits.context_tokens,
        )

    def forget(self, room: int) -> None:
        """The engine is done with a room."""
        with self._lock:
            self._rooms.pop(room, None)
            self._open.pop(room, None)
