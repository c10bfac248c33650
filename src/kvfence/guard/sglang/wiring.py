"""What each hook does: translates between SGLang's calls and the guard's memory. No decision is taken here.

Every function is named after its point (``points.py``) and has the engine's call as its first argument where it wraps
one. In ``observe`` nothing that the engine does is changed.
"""

from http import HTTPStatus
from typing import Any, cast

import numpy as np

from kvfence.core.errors import SettingsError
from kvfence.guard.key import Key
from kvfence.guard.messages import Hello, Message, Offer, Promise, RefusedAtPrefill, Welcome, seal, unseal
from kvfence.guard.settings import GuardSettings
from kvfence.guard.sglang.decode import DecodeState, Refusal
from kvfence.guard.sglang.memory import PageMemory, Pages
from kvfence.guard.sglang.points import unhooked
from kvfence.guard.sglang.prefill import PrefillState
from kvfence.guard.sglang.sockets import MAGIC, Frames, ReadSocket, WriteSocket
from kvfence.guard.sglang.tally import Tally

SUCCESS = b"4"
"""SGLang's ``KVPoll.Success`` as it travels."""

FAKE_HOST = "2.2.2.2"
"""SGLang's stand-in for prefill in health checks; nothing travels."""

HELD = ("stamp-at-adopt", "attempt-is-current", "digest-matches")
"""Refused by one of these, pages may still be written to: nobody has vouched for their last write."""


class Wiring:
    """The guard of one scheduler process, in one role."""

    def __init__(self, settings: GuardSettings) -> None:
        self._settings = settings
        self._key: Key = settings.key
        self._manager: Any = None
        self._prefill: PrefillState | None = None
        self._decode: DecodeState | None = None
        self._tally: Tally | None = None
        self._receivers: dict[int, Any] = {}

    # ---- both roles ----

    def manager_made(self, _result: Any, manager: Any, *given: Any, **_named: Any) -> None:
        """Take this process's role; its messages are read through the guard from now on."""
        missing = unhooked()
        if missing:
            raise SettingsError([f"SGLang could not put in the guard's hook {key}" for key in missing])
        role = str(given[1].value)
        server = given[2]
        if server.device != "cpu":
            raise SettingsError([f"no digest of pages on {server.device} yet: the guard runs on cpu alone"])
        memory = PageMemory(manager.kv_args)
        pool = len(memory.buffers[0]) * memory.page_size
        context = int(server.context_length or 0)
        mode = str(self._settings.mode)
        self._manager = manager
        self._tally = Tally(self._settings, role)
        if role == "prefill":
            self._prefill = PrefillState(memory, pool, context, mode)
            manager.server_socket = ReadSocket(manager.server_socket, self._read_at_prefill)
        else:
            self._decode = DecodeState(memory, pool, context, mode)
            manager.server_socket = ReadSocket(manager.server_socket, self._read_at_decode)

    @property
    def tally(self) -> Tally:
        """Give the counts; there are none before the role is known."""
        if self._tally is None:
            raise SettingsError(["the guard was asked before SGLang made its KV manager"])
        return self._tally

    def _send(self, endpoint: tuple[str, int], message: Message) -> None:
        host, port = endpoint
        address = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        self._manager._send_multipart_locked(address, [MAGIC, *seal(self._key, message)], is_ipv6=":" in host)

    # ---- prefill ----

    def _read_at_prefill(self, mac: bytes, body: bytes, frames: Frames) -> None:
        message = unseal(self._key, mac, body)
        prefill = cast(PrefillState, self._prefill)
        if len(frames) < 4 or message is None:
            self.tally.refuse(0, "peer-is-current", "a message that is not by a holder of the key", enforced=True)
            return
        endpoint = (frames[1].decode("ascii"), int(frames[2]))
        match message:
            case Hello():
                welcome = prefill.meet(message, endpoint)
                if welcome is None:
                    self.tally.refuse(0, "layout-agrees", "decode's guard has another version", enforced=True)
                else:
                    self._send(endpoint, welcome)
            case Offer():
                refused = prefill.expect(message, endpoint)
                if refused is not None:
                    self._send(endpoint, refused)
            case _:
                pass

    def prefill_admits(self, original: Any, queue: Any, req: Any, *given: Any, **named: Any) -> Any:
        """A refused request never enters the queue: it ends with its own words, and decode is told."""
        refusal = req.to_finish
        if self._prefill is None or req.bootstrap_room is None or req.bootstrap_host == FAKE_HOST:
            return original(queue, req, *given, **named)
        room = int(req.bootstrap_room)
        if type(refusal).__name__ != "FINISH_ABORT":
            self._prefill.admit(room)
            return original(queue, req, *given, **named)
        self.tally.refuse(room, "refusal-is-final", "a refused request at the door", enforced=self._settings.enforces)
        if not self._settings.enforces:
            return original(queue, req, *given, **named)
        status = int(refusal.status_code or HTTPStatus.BAD_REQUEST)
        refused = RefusedAtPrefill(room, status, str(refusal.message))
        for endpoint in self._prefill.refuse(refused):
            self._send(endpoint, refused)
        retire = getattr(queue.scheduler, "retire_unadmitted_request", None)
        if retire is not None:  # from 0.5.21 on the engine ends such a request itself, and tells nobody
            retire(req)
        else:
            req.finished_reason = refusal
            queue.scheduler.output_streamer.stream_output([req], req.return_logprob)
        return None

    def chunk_sent(self, _scheduler: Any, req: Any, *given: Any, **named: Any) -> None:
        """Note how much of the prompt has pages once the last chunk goes."""
        last = named.get("last_chunk", given[0] if given else False)
        if self._prefill is not None and last and req.bootstrap_room is not None:
            self._prefill.note_tokens(int(req.bootstrap_room), min(_end_of_pages(req), len(req.origin_input_ids)))

    def pages_sent(self, original: Any, manager: Any, room: int, pages: Pages, *given: Any, **named: Any) -> Any:
        """Digest pages before they are posted; to a decode without a guard nothing is sent in ``enforce``."""
        if self._prefill is None:
            return original(manager, room, pages, *given, **named)
        if self._settings.enforces and not self._prefill.is_expected(room):
            self.tally.refuse(room, "layout-agrees", "decode has no guard, or another key", enforced=True)
            manager.record_failure(room, "kvfence: the decode side has no guard with this key")
            manager.update_status(room, _poll("Failed"))
            return None
        self._prefill.note_pages(room, np.asarray(pages))
        return original(manager, room, pages, *given, **named)

    def status_sent(self, original: Any, manager: Any, address: str, parts: Frames, *given: Any, **named: Any) -> Any:
        """Before the engine says that a room is done, decode hears what was sent."""
        if self._prefill is not None and len(parts) >= 3 and parts[0].isdigit() and parts[1] == SUCCESS:
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            promise = self._prefill.promise(int(parts[0]), (host.strip("[]"), int(port)))
            if promise is not None:
                original(manager, address, [MAGIC, *seal(self._key, promise)], *given, **named)
        return original(manager, address, parts, *given, **named)

    def sender_cleared(self, _result: Any, sender: Any, *_given: Any, **_named: Any) -> None:
        """The engine is done with a room at prefill."""
        if self._prefill is not None:
            self._prefill.forget(int(sender.bootstrap_room))

    # ---- decode ----

    def _read_at_decode(self, mac: bytes, body: bytes, _frames: Frames) -> None:
        message = unseal(self._key, mac, body)
        decode = cast(DecodeState, self._decode)
        match message:
            case Promise():
                decode.note_promise(message)
            case RefusedAtPrefill():
                decode.note_refused(message)
                self._fail(message.room, "refused at prefill")
            case Welcome():
                self._compare(message)
            case _:
                self.tally.refuse(0, "peer-is-current", "a message that is not by a holder of the key", enforced=True)

    def _compare(self, welcome: Welcome) -> None:
        hello = cast(DecodeState, self._decode).hello
        for name in ("version", "mode", "layout"):
            if getattr(welcome, name) != getattr(hello, name):
                self.tally.refuse(0, "layout-agrees", f"the pair's {name} differ", enforced=False)

    def _fail(self, room: int, reason: str) -> None:
        """Let the engine end a room that waits for pages which will not come."""
        if not self._settings.enforces:
            return
        self._manager.record_failure(room, reason)
        self._manager.update_status(room, _poll("Failed"))
        receiver = self._receivers.get(room)
        if receiver is not None:
            receiver.conclude_state = _poll("Failed")

    def receiver_made(self, _result: Any, receiver: Any, *_given: Any, **_named: Any) -> None:
        """Know who waits for a room, so that a refusal finds it."""
        if self._decode is None or receiver.bootstrap_room is None:
            return
        room = int(receiver.bootstrap_room)
        if room in self._receivers and self._settings.enforces:
            self.tally.refuse(room, "attempt-is-current", "another request is open in this room", enforced=True)
            receiver.conclude_state = _poll("Failed")
            return
        self._receivers[room] = receiver
        if self._decode.refusal(room) is not None:
            self._fail(room, "refused at prefill")

    def receiver_cleared(self, _result: Any, receiver: Any, *_given: Any, **_named: Any) -> None:
        """The engine is done with a room at decode."""
        if self._decode is None or receiver.bootstrap_room is None:
            return
        room = int(receiver.bootstrap_room)
        if self._receivers.get(room) is receiver:
            del self._receivers[room]
            self._decode.forget(room)

    def prefill_reached(self, original: Any, *given: Any, **named: Any) -> Any:
        """What decode writes to prefill carries the guard's words behind the engine's."""
        socket, lock = original(*given, **named)
        return (socket, lock) if self._decode is None else (WriteSocket(socket, self._behind), lock)

    def _behind(self, frames: Frames) -> tuple[bytes, bytes] | None:
        decode = cast(DecodeState, self._decode)
        if frames[0] == b"None":
            return seal(self._key, decode.hello)
        if frames[0].isdigit() and len(frames) > 8 and frames[4]:
            pages = np.frombuffer(frames[4], dtype=np.int32)
            offer = decode.offer(int(frames[0]), pages, int(frames[8] or b"0"))
            return seal(self._key, offer) if offer is not None else None
        return None

    def decode_reserves(self, *_given: Any, **named: Any) -> None:
        """Note what is reserved for a room."""
        req = named["req"]
        if self._decode is not None and req.bootstrap_room is not None:
            self._decode.reserve(int(req.bootstrap_room), int(named["fill_len"]))

    def decode_admits(self, original: Any, queue: Any, req: Any, *given: Any, **named: Any) -> Any:
        """A request that is refused already, here or at prefill, reserves nothing and ends with its own words."""
        refusal = self._decode.refusal(req.bootstrap_room) if self._decode is not None else None
        own = req.to_finish
        if type(own).__name__ == "FINISH_ABORT":
            refusal = Refusal(str(own.message), int(own.status_code or HTTPStatus.BAD_REQUEST))
        if self._decode is None or refusal is None or not self._settings.enforces or req.bootstrap_room is None:
            return original(queue, req, *given, **named)
        room = int(req.bootstrap_room)
        self.tally.refuse(room, "refusal-is-final", "a refused request at the door", enforced=True)
        _prepare_abort(req, refusal.message, status_code=HTTPStatus(refusal.status))
        self._decode.told(room)
        queue.scheduler.output_streamer.stream_output([req], req.return_logprob)
        return None

    def decode_aborts(self, original: Any, req: Any, message: str, *given: Any, **named: Any) -> Any:
        """A request that the guard or prefill refused ends with that refusal's words, not with a time-out's."""
        refusal = self._decode.refusal(req.bootstrap_room) if self._decode is not None else None
        if self._decode is None or refusal is None or not self._settings.enforces:
            return original(req, message, *given, **named)
        self._decode.told(int(req.bootstrap_room))
        return original(req, refusal.message, status_code=HTTPStatus(refusal.status))

    def receiver_polled(self, original: Any, receiver: Any, *given: Any, **named: Any) -> Any:
        """Success waits for verified pages; a refusal is a failure, on every rank by the engine's own vote."""
        status = original(receiver, *given, **named)
        if self._decode is None or status != _poll("Success") or receiver.bootstrap_room is None:
            return status
        room = int(receiver.bootstrap_room)
        judged = self._decode.judge(room, enforced=self._settings.enforces)
        if judged is None:  # the engine says that pages came which the guard has not offered
            self.tally.refuse(room, "stamp-at-adopt", "nothing was offered", enforced=self._settings.enforces)
            return self._refused(room, "pages came that were not offered") if self._settings.enforces else status
        verdict, first = judged
        if first:
            self.tally.note(verdict.decisions if verdict.holds else verdict.decisions[:-1])
            if not verdict.holds:
                guard = verdict.decisions[-1].guard
                self.tally.refuse(room, guard, verdict.reason, enforced=self._settings.enforces)
        if verdict.holds or not self._settings.enforces:
            return status
        return self._refused(room, verdict.reason)

    def _refused(self, room: int, reason: str) -> Any:
        cast(DecodeState, self._decode).refuse(room, Refusal(f"kvfence: {reason}", HTTPStatus.BAD_GATEWAY))
        self._fail(room, reason)
        return _poll("Failed")

    def decode_releases(self, original: Any, req: Any, *given: Any, **named: Any) -> Any:
        """Pages that came, and were not what was promised, stay out of the pool: somebody may still write to them."""
        room = req.bootstrap_room
        verdict = self._decode.verdict(int(room)) if self._decode is not None and room is not None else None
        if self._decode is None or verdict is None or verdict.holds or not self._settings.enforces:
            return original(req, *given, **named)
        if verdict.decisions[-1].guard not in HELD:
            return original(req, *given, **named)  # prefill vouches that all it posted for this attempt has landed
        self.tally.hold(self._decode.num_pages(int(room)))
        return None


def _end_of_pages(req: Any) -> int:
    """Give how many tokens of a prompt have pages: 0.5.22 has renamed where it says so."""
    renamed = getattr(req, "extend_end", None)
    return int(req.extend_range.end if renamed is None else renamed)


def _poll(name: str) -> Any:
    from sglang.srt.disaggregation.base import KVPoll  # type: ignore[import-not-found, unused-ignore]

    return getattr(KVPoll, name)


def _prepare_abort(req: Any, message: str, *, status_code: HTTPStatus) -> None:
    from sglang.srt.disaggregation.utils import prepare_abort  # type: ignore[import-not-found, unused-ignore]

    prepare_abort(req, message, status_code=status_code)
