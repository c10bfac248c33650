"""What each hook does at decode: named after its point (``points.py``), with the engine's call where it wraps one."""

import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

import numpy as np

from kvfence.core.ids import AttemptId, Incarnation, new_session
from kvfence.guard.handoff import as_promised
from kvfence.guard.messages import Drained, Message, Offer, Promise, RefusedAtPrefill, Revoke, Unknown, Welcome, seal
from kvfence.guard.sglang import session
from kvfence.guard.sglang.at_prefill import INTRODUCTION
from kvfence.guard.sglang.decode import DecodeState, Refusal, Reserved
from kvfence.guard.sglang.engine import FAKE_HOST, TOLD
from kvfence.guard.sglang.quarantine import Held, Quarantine
from kvfence.guard.sglang.sockets import Frames, WriteSocket
from kvfence.protocol import messages
from kvfence.protocol.events import SessionRebuilt
from kvfence.protocol.watched import Asked, AtDoor, Compared, Declined, Heard, Returning, Said, Used, Watched
from kvfence.protocol.watched import Reserved as SetAside

if TYPE_CHECKING:
    from kvfence.guard.sglang.wiring import Wiring

PAGES, ROW, PREFIX = 4, 5, 8
"""Where decode's message to prefill says which pages, which row beside them, and how much it has already."""

PROBE_TOKENS = 4
"""As many as SGLang's own health checks and warm-up ask for; whoever wants more from nobody is refused."""

FROM_NOBODY = Refusal("kvfence: bootstrap_host names no prefill, so that nobody would write the prompt's pages", 400)

HELD_SHARE = 0.25
"""Of the pool: with more pages than that waiting for a new session, nothing is reserved until it has come."""


class AtDecode:
    """The hooks of a decode rank; each leaves the engine alone where this process has another role."""

    def __init__(self, wiring: "Wiring") -> None:
        self._wiring = wiring
        self.state: DecodeState | None = None
        self.quarantine = Quarantine()
        self._num_pages = 0
        self._receivers: dict[int, Any] = {}
        self._strangers: WeakSet[Any] = WeakSet()
        self._running: dict[str, AttemptId] = {}
        self._waits = False
        self._rebuilt_s = float("-inf")
        self._unended: set[str] = set()

    def begin(self, state: DecodeState, num_pages: int) -> None:
        """Take this role."""
        self.state, self._num_pages = state, num_pages

    @property
    def _enforces(self) -> bool:
        return self.state is not None and self._wiring.settings.enforces

    # ---- what prefill says ----

    def read(self, message: Message, _frames: Frames) -> bool:
        """Take a message of a prefill's; False for one that nobody says to decode."""
        state = cast(DecodeState, self.state)
        match message:
            case Promise():
                if state.note_promise(message):
                    self._see(Heard(message.sender, as_promised(message)))
            case RefusedAtPrefill():
                if state.note_refused(message, is_here=message.room in self._receivers):
                    if message.attempt is not None:
                        self._see(Heard(Incarnation(""), Declined(message.attempt)))
                    self._fail(message.room, "refused at prefill")
            case Drained():
                self.quarantine.note_drained(message.attempt, message.place)
                self._see(Heard(Incarnation(""), messages.Drained(message.attempt)))
            case Unknown():
                self.quarantine.note_unknown(message.attempt)
                self._see(Heard(Incarnation(""), messages.Unknown(message.attempt)))
            case Welcome():
                self._wiring.compare(state.hello, message)
            case _:
                return False
        return True

    def _see(self, event: Watched) -> None:
        self._wiring.watcher.see(event)

    def _fail(self, room: int, reason: str) -> None:
        """Let the engine end a room that waits for pages which will not come."""
        if not self._enforces:
            return
        self._wiring.fail(room, reason)
        receiver = self._receivers.get(room)
        if receiver is not None:
            receiver.conclude_state = self._wiring.engine.poll("Failed")

    # ---- who waits for a room ----

    def receiver_made(self, _result: Any, receiver: Any, *_given: Any, **_named: Any) -> None:
        """Know who waits for a room, so that a refusal finds it; nobody else waits for it meanwhile."""
        if self.state is None or receiver.bootstrap_room is None:
            return
        room = int(receiver.bootstrap_room)
        if room in self._receivers and self._enforces:
            reason = "another request is open in this room"
            self._wiring.tally.refuse(room, "attempt-is-current", reason, enforced=True)
            receiver.conclude_state = self._wiring.engine.poll("Failed")
            self._strangers.add(receiver)
            return
        self._receivers[room] = receiver
        if self.state.refusal(room) is not None:
            self._fail(room, "refused at prefill")

    def receiver_cleared(self, original: Any, receiver: Any, *given: Any, **named: Any) -> Any:
        """The engine is done with a transfer; its pages may have to wait all the same (``decode_releases``).

        What is known of the room is not that of who was refused in it.
        """
        if receiver in self._strangers:
            return None
        result = original(receiver, *given, **named)
        if self.state is not None and receiver.bootstrap_room is not None:
            room = int(receiver.bootstrap_room)
            if self._receivers.get(room) is receiver:
                del self._receivers[room]
                self.state.forget(room)
        return result

    def prefill_reached(self, original: Any, *given: Any, **named: Any) -> Any:
        """What decode writes to prefill carries the guard's words behind the engine's."""
        socket, lock = original(*given, **named)
        return (socket, lock) if self.state is None else (WriteSocket(socket, self._behind), lock)

    def _behind(self, frames: Frames) -> tuple[bytes, bytes] | None:
        state, key = cast(DecodeState, self.state), self._wiring.settings.key
        if frames[0] == INTRODUCTION:
            return seal(key, state.hello)
        if frames[0].isdigit() and len(frames) > PREFIX and frames[PAGES]:
            pages = np.frombuffer(frames[PAGES], dtype=np.int32)
            room = int(frames[0])
            offer = state.offer(room, pages, int(frames[ROW]), int(frames[PREFIX] or b"0"))
            if offer is None:
                return None
            self._wiring.at_pool.set_aside(cast(Reserved, state.reserved(room)).req)
            attempt, num_tokens = offer.attempt, offer.num_tokens
            self._see(SetAside(attempt, num_tokens, tuple(pages.tolist())))
            self._see(Said(Asked(attempt, num_tokens, offer.num_pages, state.hello.layout)))
            return seal(key, offer)
        return None

    # ---- requests ----

    def decode_reserves(self, *_given: Any, **named: Any) -> None:
        """Note what is reserved for a room."""
        req = named["req"]
        if self.state is not None and req.bootstrap_room is not None and req.bootstrap_host != FAKE_HOST:
            room = int(req.bootstrap_room)
            self.state.reserve(room, Reserved(str(req.rid), int(named["fill_len"]), self._receivers.get(room), req))

    def probe_told(self, _receiver: Any, kv_indices: Any, aux_index: Any = None, *_given: Any, **_named: Any) -> None:
        """The engine's probe of itself is about to read pages that nobody writes."""
        if self.state is not None and self._enforces:
            self.state.blank(np.asarray(kv_indices), aux_index)

    def decode_places(self, original: Any, queue: Any, *given: Any, **named: Any) -> Any:
        """While much of the pool waits for a new session, nothing new is reserved in the old one."""
        return ([], []) if self._waits else original(queue, *given, **named)

    def decode_admits(self, original: Any, queue: Any, req: Any, *given: Any, **named: Any) -> Any:
        """A request that is refused already, here or at prefill, reserves nothing and ends with its own words."""
        room, is_probe = self._wiring.room_of(req), req.bootstrap_host == FAKE_HOST
        if self.state is None or (room is None and not is_probe):
            return original(queue, req, *given, **named)
        guard, refusal = self._why_not(req, room, queue.gloo_group)
        if refusal is not None and not self._enforces and self._wiring.engine.keeps_out(req):
            return original(queue, req, *given, **named)
        self._see(AtDoor(refusal is not None))
        if refusal is None:
            return original(queue, req, *given, **named)
        self._wiring.tally.refuse(room or 0, guard, "a refused request at the door", enforced=self._enforces)
        if not self._enforces:
            return original(queue, req, *given, **named)
        self._wiring.engine.prepare_abort(req, refusal.message, refusal.status)
        if room is not None and not is_probe:
            self.state.told(room)
        queue.scheduler.output_streamer.stream_output([req], req.return_logprob)
        return None

    def _why_not(self, req: Any, room: int | None, ranks: Any) -> tuple[str, Refusal | None]:
        """Give which guard asks at the door, and why a request may not enter; None where it may.

        The room of the engine's probe of itself is nobody's. Ranks hear of prefill's refusal at times of their own, and
        must queue the same: where not all have heard, the request enters, and the transfer's own vote ends it.
        """
        own = req.to_finish
        if type(own).__name__ == "FINISH_ABORT":
            return "refusal-is-final", Refusal(str(own.message), int(own.status_code or HTTPStatus.BAD_REQUEST))
        if req.bootstrap_host == FAKE_HOST:
            return "stamp-at-adopt", FROM_NOBODY if len(req.origin_input_ids) > PROBE_TOKENS else None
        refusal = cast(DecodeState, self.state).refusal(room)
        (heard_by_all,) = self._wiring.engine.agree([refusal is not None], ranks)
        return "refusal-is-final", refusal if heard_by_all else None

    def decode_aborts(self, original: Any, req: Any, message: str, *given: Any, **named: Any) -> Any:
        """A request that the guard or prefill refused ends with that refusal's words, not with a time-out's."""
        if self.state is None or req.bootstrap_host == FAKE_HOST:
            return original(req, message, *given, **named)
        refusal = self.state.refusal(req.bootstrap_room)
        if req.bootstrap_room is not None:
            self.state.fail(str(req.rid), int(req.bootstrap_room))
        if refusal is None or not self._enforces:
            return original(req, message, *given, **named)
        self.state.told(int(req.bootstrap_room))
        return original(req, refusal.message, status_code=HTTPStatus(refusal.status))

    # ---- adoption ----

    def receiver_polled(self, original: Any, receiver: Any, *given: Any, **named: Any) -> Any:
        """Success waits for verified pages; a refusal is a failure, on every rank by the engine's own vote."""
        status = original(receiver, *given, **named)
        success = self.state is not None and status == self._wiring.engine.poll("Success")
        if self.state is None or not success or receiver.bootstrap_room is None:
            return status
        room, tally = int(receiver.bootstrap_room), self._wiring.tally
        judged = self.state.judge(room, enforced=self._enforces)
        if judged is None:  # the engine says that pages came which the guard has not offered
            tally.refuse(room, "stamp-at-adopt", "nothing was offered", enforced=self._enforces)
            return self._refused(room, "pages came that were not offered") if self._enforces else status
        verdict, first = judged
        if first:
            self._tell(cast(Reserved, self.state.reserved(room)), used=verdict.holds or not self._enforces)
            tally.note(verdict.decisions if verdict.holds else verdict.decisions[:-1])
            if not verdict.holds:
                tally.refuse(room, verdict.decisions[-1].guard, verdict.reason, enforced=self._enforces)
        if verdict.holds or not self._enforces:
            return status
        return self._refused(room, verdict.reason)

    def _tell(self, reserved: Reserved, *, used: bool) -> None:
        """Write down what was compared, and whether the engine goes on with it."""
        offer = cast(Offer, reserved.offer)
        promise = as_promised(reserved.promise) if reserved.promise is not None else None
        self._see(Compared(offer.attempt, reserved.num_tokens, offer.num_pages, promise, reserved.digest))
        if used:
            self._running[reserved.request] = offer.attempt
            self._see(Used(offer.attempt))

    def attempt_of(self, req: Any) -> AttemptId | None:
        """Give the attempt that a running request's pages were handed off in."""
        return self._running.get(str(req.rid))

    def _refused(self, room: int, reason: str) -> Any:
        cast(DecodeState, self.state).refuse(room, Refusal(f"kvfence: {reason}", TOLD))
        self._fail(room, reason)
        return self._wiring.engine.poll("Failed")

    # ---- giving pages back ----

    def decode_releases(self, original: Any, req: Any, *given: Any, **named: Any) -> Any:
        """Pages that were offered and not adopted are not given back before it is proven that nobody writes there."""
        room = req.bootstrap_room
        self._wiring.at_pool.given_up(req)
        used = self._running.pop(str(req.rid), None)
        if used is not None:
            self._see(Returning(used))
        owed = self.state.take_owed(str(req.rid), int(room)) if self.state is not None and room is not None else None
        if owed is None or not self._enforces:
            if owed is not None and used is None:
                self._see(Returning(cast(Offer, owed.offer).attempt))
            return original(req, *given, **named)
        held = self._held(owed)
        if not held.is_quiet:
            self._see(Said(messages.Abort(held.attempt)))
        held.give_back.append(lambda: original(req, *given, **named))
        self.quarantine.hold(held)
        self._wiring.tally.held(self.quarantine.num_pages)
        return None

    def _held(self, owed: Reserved) -> Held:
        offer, receiver = cast(Any, owed.offer), owed.receiver
        infos = list(getattr(receiver, "bootstrap_infos", None) or ())
        places = frozenset(at for at, info in enumerate(infos) if not info.get("is_dummy"))

        def ask(place: int) -> None:
            socket, lock = receiver._connect_to_bootstrap_server(infos[place])
            with lock:
                frames = self._wiring.frames(Revoke(offer.attempt, offer.room, place))
                self._wiring.engine.send_nowait(socket, frames)

        held = Held(offer.attempt, offer.room, offer.num_pages, owed.row, places, ask, time.monotonic())
        held.wants_session = owed.is_torn or not places
        if owed.is_vouched_for and len(places) == 1:  # of several, the promise does not say which one made it
            held.drained |= places
        return held

    def row_freed(self, original: Any, allocator: Any, row: int, *given: Any, **named: Any) -> Any:
        """What travels beside held pages is held with them."""
        held = self.quarantine.with_row(int(row)) if self.state is not None else None
        if held is None:
            return original(allocator, row, *given, **named)
        held.give_back.append(lambda: original(allocator, row, *given, **named))
        return None

    def decode_holds(self, original: Any, *given: Any, **named: Any) -> Any:
        """Held pages are out of the pool by intent, so that the engine does not take them for lost."""
        return bool(self.quarantine.held or self._wiring.at_pool.num_banned) or original(*given, **named)

    def decode_turns(self, _result: Any, queue: Any, *_given: Any, **_named: Any) -> None:
        """Once a turn of the scheduler: ask for what is held, and give back what is proven quiet on every rank."""
        quarantine = self.quarantine
        if self.state is None or not quarantine.held:
            return
        now_s = time.monotonic()
        for one, place in quarantine.due(now_s):
            one.ask(place)
        flags = [one.is_quiet for one in quarantine.held]
        flags += [not quarantine.wants_session(now_s), self.state.num_open == 0]
        *quiet, content, still = self._wiring.engine.agree(flags, queue.gloo_group)
        if not content and still:
            self._rebuild(now_s)
        for one in quarantine.release(quiet):
            self._see(Returning(one.attempt))
            for give_back in one.give_back:
                give_back()
        self._waits = not content and not still and quarantine.num_pages > HELD_SHARE * self._num_pages
        self._wiring.tally.held(quarantine.num_pages)

    def _rebuild(self, now_s: float) -> None:
        """End the session that held pages were offered in; they stay held until it has ended, and all before it."""
        if now_s - self._rebuilt_s < session.AGAIN_S:
            return
        self._rebuilt_s = now_s
        self._unended.add(session.rebuild(self._wiring.manager, self._receivers.values()))
        self._unended.discard(str(self._wiring.manager.engine.session_id))  # whose port was free to bind again
        self._unended = {each for each in self._unended if not session.has_ended(each)}
        if not self._unended:
            self.quarantine.fence()
            self._see(SessionRebuilt(new_session()))
        self._wiring.tally.rebuilt()
