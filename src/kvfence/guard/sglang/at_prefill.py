"""What each hook does at prefill: named after its point (``points.py``), with the engine's call where it wraps one."""

from copy import copy
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kvfence.core.errors import SettingsError
from kvfence.guard.handoff import as_promised
from kvfence.guard.messages import Drained, Hello, Message, Offer, RefusedAtPrefill, Revoke, Unknown
from kvfence.guard.sglang.engine import FAKE_HOST, TOLD
from kvfence.guard.sglang.memory import Pages
from kvfence.guard.sglang.prefill import Endpoint, PrefillState
from kvfence.guard.sglang.sockets import Frames
from kvfence.protocol import messages
from kvfence.protocol.watched import Asked, AtDoor, Heard, Posted, Said

if TYPE_CHECKING:
    from kvfence.guard.sglang.wiring import Wiring

SUCCESS = b"4"
"""SGLang's ``KVPoll.Success`` as it travels."""

INTRODUCTION, SESSION = b"None", 3
"""How a decode's first message begins, and where it names the session that its pages are written to."""


class AtPrefill:
    """The hooks of a prefill rank; each leaves the engine alone where this process has another role."""

    def __init__(self, wiring: "Wiring") -> None:
        self._wiring = wiring
        self.state: PrefillState | None = None

    def begin(self, state: PrefillState) -> None:
        """Take this role; the engine's manager is not whole yet."""
        self.state = state

    @property
    def _enforces(self) -> bool:
        return self._wiring.settings.enforces

    def complete(self) -> None:
        """The engine's manager is whole: from now on a write that fails is remembered by the session it went to."""
        if self.state is None:
            return
        manager = self._wiring.manager
        if not hasattr(manager, "_staging_outstanding"):
            raise SettingsError(["this SGLang does not count the writes of a room: the guard does not know it"])
        shared = manager.engine
        for name in ("batch_transfer_sync", "transfer_sync"):
            setattr(shared, name, self._watched(getattr(shared, name)))

    def _watched(self, write: Any) -> Any:
        def watched(session: str, *given: Any, **named: Any) -> Any:
            status = write(session, *given, **named)
            if status != 0:
                cast(PrefillState, self.state).note_failed(session)
            return status

        return watched

    # ---- what decode says ----

    def read(self, message: Message, frames: Frames) -> bool:
        """Take a message of a decode's; False for one that nobody says to prefill."""
        state = cast(PrefillState, self.state)
        if isinstance(message, Revoke):
            self._revoke(message)
            return True
        if len(frames) <= SESSION or not isinstance(message, Hello | Offer):
            return False
        endpoint = (frames[1].decode("ascii"), int(frames[2]))
        if isinstance(message, Offer):
            refused = state.expect(message, endpoint, frames[SESSION].decode("ascii"))
            if refused is not None:
                self._send(endpoint, refused)
            elif state.attempt_in(message.room) == message.attempt:
                asked = Asked(message.attempt, message.num_tokens, message.num_pages, state.layout_at(endpoint))
                self._wiring.watcher.see(Heard(message.attempt.gateway, asked))
            return True
        welcome = state.meet(message, endpoint, frames[SESSION].decode("ascii"))
        if welcome is None:
            self._wiring.tally.refuse(0, "layout-agrees", "decode's guard has another version", enforced=True)
        else:
            self._wiring.compare(welcome, message)
            self._send(endpoint, welcome)
        return True

    def _send(self, endpoint: Endpoint, message: Message) -> None:
        """Send a message that is sent again where it is missed; who cannot take it is not waited for."""
        if not self._wiring.send(endpoint, message):
            cast(PrefillState, self.state).note_deaf(endpoint)

    def _refuse(self, refused: RefusedAtPrefill) -> None:
        for endpoint, word in cast(PrefillState, self.state).refuse(refused):
            self._send(endpoint, word)

    def _mute(self, room: int, *, posting: bool) -> None:
        """Let nothing more of a room be written to who has no offer in it, or none any more.

        The engine's worker reads a room's receivers once for each chunk that it counts: they are replaced, not changed.
        """
        infos = self._wiring.manager.transfer_infos
        before = infos.get(room)
        given = dict(before or ())
        kept, waiting = cast(PrefillState, self.state).receivers(room, given, posting=posting)
        told = {one: given[one] if one in waiting else _muted(given[one]) for one in given if one in kept}
        if any(told.get(one) is not info for one, info in given.items()) and infos.get(room) is before:
            infos[room] = told

    def _revoke(self, revoke: Revoke) -> None:
        """Send nothing more of an attempt, and answer once what is being written has ended; decode asks again."""
        state, manager = cast(PrefillState, self.state), self._wiring.manager
        endpoint = state.revoke(revoke)
        if not state.is_expected(revoke.room):
            success = self._wiring.engine.poll("Success")
            if manager.request_status.get(revoke.room, success) != success:
                self._wiring.fail(revoke.room, "decode waits for this room no more")
            manager.transfer_infos.pop(revoke.room, None)
        else:
            self._mute(revoke.room, posting=False)
        if endpoint is None or manager._staging_outstanding.get(revoke.room, 0) > 0:
            return
        attempt = revoke.attempt
        unsure = state.is_unsure(attempt, endpoint)
        said = messages.Unknown(attempt) if unsure else messages.Drained(attempt)
        self._wiring.watcher.see(Heard(attempt.gateway, messages.Abort(attempt)))
        self._wiring.watcher.see(Said(said, attempt.gateway))
        self._send(endpoint, (Unknown if unsure else Drained)(attempt, revoke.place))

    # ---- what the engine does ----

    def prefill_admits(self, original: Any, queue: Any, req: Any, *given: Any, **named: Any) -> Any:
        """A refused request never enters the queue: it ends with its own words, and decode is told."""
        refusal, room, enforces = req.to_finish, self._wiring.room_of(req), self._enforces
        if self.state is None or room is None or req.bootstrap_host == FAKE_HOST:
            return original(queue, req, *given, **named)
        refused_already = type(refusal).__name__ == "FINISH_ABORT"
        if refused_already and not enforces and self._wiring.engine.keeps_out(req):
            return original(queue, req, *given, **named)
        self._wiring.watcher.see(AtDoor(refused_already))
        if not refused_already:
            is_alone = self.state.admit(room)
            if is_alone or not enforces:
                result = original(queue, req, *given, **named)
                if is_alone:
                    self._look_behind(req, room)
                return result
            reason = "another request is open in this room"
            self._wiring.tally.refuse(room, "attempt-is-current", reason, enforced=True)
            self._wiring.engine.prepare_abort(req, f"kvfence: {reason}", HTTPStatus.BAD_REQUEST)
            queue.scheduler.output_streamer.stream_output([req], req.return_logprob)
            return None
        self._wiring.tally.refuse(room, "refusal-is-final", "a refused request at the door", enforced=enforces)
        if not enforces:
            return original(queue, req, *given, **named)
        status = int(refusal.status_code or HTTPStatus.BAD_REQUEST)
        self._refuse(RefusedAtPrefill(room, status, str(refusal.message)))
        retire = getattr(queue.scheduler, "retire_unadmitted_request", None)
        if retire is not None:  # from 0.5.21 on the engine ends such a request itself, and tells nobody
            retire(req)
        else:
            req.finished_reason = refusal
            queue.scheduler.output_streamer.stream_output([req], req.return_logprob)
        return None

    def _look_behind(self, req: Any, room: int) -> None:
        """The engine has a look of its own while it queues a request: who is refused there is refused for good too."""
        refusal, state = req.finished_reason, cast(PrefillState, self.state)
        if type(refusal).__name__ == "FINISH_ABORT":
            if self._enforces:
                status = int(refusal.status_code or HTTPStatus.BAD_REQUEST)
                self._refuse(RefusedAtPrefill(room, status, str(refusal.message)))
            state.forget(room)

    def chunk_sent(self, _scheduler: Any, req: Any, *given: Any, **named: Any) -> None:
        """Note how much of the prompt has pages once the last chunk goes."""
        last = named.get("last_chunk", given[0] if given else False)
        if self.state is not None and last and req.bootstrap_room is not None:
            self.state.note_tokens(int(req.bootstrap_room), min(_end_of_pages(req), len(req.origin_input_ids)))

    def pages_sent(self, original: Any, manager: Any, room: int, pages: Pages, *given: Any, **named: Any) -> Any:
        """Digest pages before they are posted; in ``enforce`` nothing is sent that no decode with a guard waits for."""
        if self.state is None:
            return original(manager, room, pages, *given, **named)
        for event in (named.get("indices_event"), named.get("wait_event")):
            if event is not None:  # the device has yet to write these numbers, or what is in the pages
                event.synchronize()
        self._wiring.watcher.see(Posted(self.state.attempt_in(room), len(pages)))
        if self._enforces and not self.state.is_expected(room):
            given_up = self.state.was_given_up(room)
            reason = "decode waits for it no more" if given_up else "no decode with this key and version waits for it"
            self._wiring.tally.refuse(room, "tombstone" if given_up else "layout-agrees", reason, enforced=True)
            self._wiring.fail(room, f"kvfence: {reason}")
            return None
        if not self._wiring.at_pool.are_granted(pages):
            self._wiring.tally.refuse(room, "hold-source", "a page was given back", enforced=self._enforces)
            if self._enforces:
                return self.lose(room, "kvfence: a page of this prompt was given back before it was sent")
        row = named.get("aux_index", given[2] if len(given) > 2 else None)
        if self._enforces:
            self._mute(room, posting=True)
        self.state.note_pages(room, np.asarray(pages), row)
        return original(manager, room, pages, *given, **named)

    def status_sent(self, original: Any, manager: Any, address: str, parts: Frames, *given: Any, **named: Any) -> Any:
        """Before the engine says that a room is done, decode hears what was sent."""
        if self.state is not None and len(parts) >= 3 and parts[0].isdigit() and parts[1] == SUCCESS:
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            promise = self.state.promise(int(parts[0]), (host.strip("[]"), int(port)))
            if promise is not None:
                self._wiring.watcher.see(Said(as_promised(promise), promise.attempt.gateway))
                original(manager, address, self._wiring.frames(promise), *given, **named)
        return original(manager, address, parts, *given, **named)

    def lose(self, room: int, reason: str) -> None:
        """A room's pages are not what they were granted for: nothing of it is sent, and decode is told."""
        if self.state is None or not room:
            return
        self._refuse(RefusedAtPrefill(room, TOLD, reason))
        self._wiring.fail(room, reason)

    def sender_cleared(self, _result: Any, sender: Any, *_given: Any, **_named: Any) -> None:
        """The engine is done with a room at prefill."""
        if self.state is not None:
            self.state.forget(int(sender.bootstrap_room))


def _muted(info: Any) -> Any:
    """Give a receiver as the engine names one that it writes nothing to."""
    if info.is_dummy:
        return info
    muted = copy(info)
    muted.is_dummy = True
    return muted


def _end_of_pages(req: Any) -> int:
    """Give how many tokens of a prompt have pages: 0.5.22 has renamed where it says so."""
    renamed = getattr(req, "extend_end", None)
    return int(req.extend_range.end if renamed is None else renamed)
