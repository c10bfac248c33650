"""A stand-in for an SGLang pair in one process: its calls, its order of calls and its faults, over real bytes.

Shaped as SGLang's objects where the guard touches them. Each of SGLang's functions that the guard wraps is called
through ``Side.call``, which puts the guard's hook around it, or leaves it out: so a guarantee is tested by taking its
guard away. Nothing happens by itself: tests let messages arrive (``pump``), writes land (``land``) and turns pass.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from kvfence.guard import settings
from kvfence.guard.sglang.engine import FAKE_HOST
from kvfence.guard.sglang.points import POINTS
from kvfence.guard.sglang.wiring import Wiring
from tests.unit.guard.sglang.parts import (
    BESIDE,
    FINISH_ABORT,
    ITEM,
    KEY,
    PAGE,
    PAGES,
    ROWS,
    Empty,
    KVPoll,
    Memory,
    Pool,
    Req,
    Socket,
    StandInEngine,
)

HOW = {point.key: point.how for point in POINTS}


class Side:
    """What both roles have: hooks, a manager's tables, a place in the network."""

    def __init__(self, role: str, port: int, network: dict[int, deque[list[bytes]]], guard: dict[str, Any]) -> None:
        self.role, self.port, self.network = role, port, network
        self.inbox = network.setdefault(port, deque())
        self.memory = Memory(port, guard.get("item", ITEM))
        self.kv_args = self.memory.args
        self.server_socket: Any = Socket(self.inbox)
        self.request_status: dict[int, KVPoll] = {}
        self.failures: dict[int, str] = {}
        self.transfer_infos: dict[int, dict[str, Any]] = {}
        self.connection_pool: dict[str, Any] = {}
        self.answers: list[Req] = []
        self.output_streamer = SimpleNamespace(stream_output=lambda reqs, _: self.answers.extend(reqs))
        self.scheduler = self
        self.outcome = 0
        self.stand_in = StandInEngine()
        self.stand_in.backend = guard.get("backend", self.stand_in.backend)
        self._without = frozenset(guard.get("without", ()))
        environment = {"KVFENCE_GUARD": guard.get("mode", "enforce"), "KVFENCE_GUARD_KEY": guard.get("key", KEY)}
        if "trace" in guard:
            environment["KVFENCE_GUARD_TRACE"] = guard["trace"]
        self.wiring: Wiring | None = None
        if guard.get("mode") != "off":
            self.wiring = Wiring(settings.load(environment), self.stand_in, CollectorRegistry())
            server = SimpleNamespace(device="cpu", context_length=64)
            self.wiring.manager_made(None, self, None, SimpleNamespace(value=role), server)
        # SGLang's manager of a backend is whole only after the one that all backends share
        if guard.get("counts", True):
            self._staging_outstanding: defaultdict[int, int] = defaultdict(int)
        self.engine: Any = SimpleNamespace(session_id=f"127.0.0.1:{port + 1}")
        self.engine.batch_transfer_sync = self.engine.transfer_sync = self._write
        self.token_to_kv_pool_allocator = Pool()
        self.model_config = SimpleNamespace(context_len=guard.get("context", PAGES * PAGE))
        self.req_to_token_pool = SimpleNamespace(req_to_token=np.zeros((ROWS, 64), np.int32))
        if self.wiring is not None:
            self.wiring.hook("paged-clears")(None, self.token_to_kv_pool_allocator)
            self.wiring.hook("roles-made")(None, self)

    def call(self, key: str, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call one of SGLang's functions, with the guard's hook where there is one."""
        if self.wiring is None or key in self._without:
            return original(*given, **named)
        hook = self.wiring.hook(key)
        if HOW[key] == "around":
            return hook(original, *given, **named)
        if HOW[key] == "before":
            hook(*given, **named)
            return original(*given, **named)
        result = original(*given, **named)
        changed = hook(result, *given, **named)
        return result if changed is None else changed

    def _make(self, req: Req) -> None:
        """Make a request of a question; one that names a session which is not there loses its room, as SGLang's do."""
        asked = SimpleNamespace(rid=req.rid, bootstrap_room=req.bootstrap_room)
        self.call("request-read", lambda _scheduler, _asked: None, self, asked)
        if req.is_of_no_session:
            req.bootstrap_room = req.bootstrap_host = None

    def record_failure(self, room: int, reason: str) -> None:
        """Remember why a room failed."""
        self.failures[room] = reason

    def update_status(self, room: int, status: KVPoll) -> None:
        """Move a room on, or fail it; one that is not open any more stays so."""
        if status is KVPoll.FAILED and room not in self.request_status:
            return
        old = self.request_status.get(room, status)
        self.request_status[room] = KVPoll.FAILED if status is KVPoll.FAILED else max(old, status)

    def _send_multipart_locked(self, address: str, parts: list[bytes], is_ipv6: bool = False) -> None:
        del is_ipv6
        port = int(address.rpartition(":")[2])
        self.call("status-sent", lambda _m, _a, frames: self.network[port].append(frames), self, address, parts)

    def _write(self, _session: str, source: Iterable[int], target: Iterable[int], other: Memory) -> int:
        for mine, theirs in zip(self.memory.raw, other.raw, strict=True):
            theirs.reshape(PAGES, ITEM)[list(target)] = mine.reshape(PAGES, ITEM)[list(source)]
        return self.outcome

    def messages(self) -> list[list[bytes]]:
        """Give what arrived that is the engine's."""
        taken: list[list[bytes]] = []
        while True:
            try:
                taken.append(self.server_socket.recv_multipart())
            except Empty:
                return taken


class Prefill(Side):
    """A prefill rank."""

    def __init__(self, port: int, network: dict[int, deque[list[bytes]]], guard: dict[str, Any]) -> None:
        super().__init__("prefill", port, network, guard)
        self.queue: list[Req] = []
        self.capacity = PAGES * PAGE
        slots = np.arange(PAGES * PAGE)  # whatever is sent was granted, until a test says otherwise
        self.call("paged-grants", lambda _pool: slots, self.token_to_kv_pool_allocator)
        self.posted: deque[tuple[int, np.ndarray, slice | None, int | None]] = deque()

    def pump(self) -> None:
        """Read what decode says, as SGLang's thread does."""
        for frames in self.messages():
            if frames[0] == b"None":
                continue
            if frames[0] == b"ABORT":
                self.update_status(int(frames[1]), KVPoll.FAILED)
                continue
            info = SimpleNamespace(frames=frames, is_dummy=False)
            self.transfer_infos.setdefault(int(frames[0]), {})[frames[3].decode()] = info
            self.update_status(int(frames[0]), KVPoll.WAITING)

    def submit(self, req: Req) -> None:
        """A request arrives; a refused one too, with a stub for its prompt."""
        self._make(req)
        self.call("prefill-admits", lambda _queue, one: self._add(one), self, req)

    def _add(self, req: Req) -> None:
        if self.stand_in.keeps_out(req):
            return
        if len(req.origin_input_ids) > self.capacity:
            req.finished_reason = FINISH_ABORT(f"{len(req.origin_input_ids)} tokens > {self.capacity}", 400)
            self.answers.append(req)
            return
        self.queue.append(req)
        self.update_status(req.bootstrap_room, KVPoll.BOOTSTRAPPING)

    def give_back(self, pages: Sequence[int]) -> None:
        """The allocator takes pages back."""
        self.call("paged-frees", lambda _pool, _pages: None, self.token_to_kv_pool_allocator, np.array(pages))

    def send(self, req: Req, pages: Sequence[int], row: int = 3) -> None:
        """The last pass has ended: the pages are posted."""
        self.call("chunk-sent", lambda *_a, **_n: None, self, req, last_chunk=True)
        self.call(
            "pages-sent", self._post, self, req.bootstrap_room, np.array(pages, np.int32), None, True, aux_index=row
        )

    def _post(
        self, _m: Any, room: int, pages: np.ndarray, where: Any, last: bool, aux_index: int, **_events: Any
    ) -> None:
        if self.request_status.get(room, KVPoll.FAILED) is not KVPoll.FAILED:
            self.posted.append((room, pages, where, aux_index if last else None))

    def begin(self) -> Callable[[], None]:
        """A worker takes what was posted first; what it gives lets the bytes land."""
        room, pages, where, row = self.posted.popleft()
        self._staging_outstanding[room] += 1
        skipped = self.request_status.get(room, KVPoll.FAILED) is KVPoll.FAILED
        targets = dict(self.transfer_infos.get(room, {}))

        def land() -> None:
            for session, info in () if skipped else targets.items():
                if not info.is_dummy:
                    self._land(room, (pages, where, row), (session, info.frames))
            self._staging_outstanding[room] -= 1

        return land

    def _land(self, room: int, what: Any, target: tuple[str, list[bytes]]) -> None:
        (pages, where, row), (session, frames) = what, target
        into = np.frombuffer(frames[4], np.int32)[where or slice(len(pages))]
        other = PEERS[int(frames[2])].memory
        if self.engine.batch_transfer_sync(session, pages, into, other) != 0:
            self.update_status(room, KVPoll.FAILED)
        elif row is None:
            return
        else:
            other.beside.reshape(ROWS, BESIDE)[int(frames[5])] = self.memory.beside.reshape(ROWS, BESIDE)[row]
            self.update_status(room, KVPoll.SUCCESS)
        parts = [str(room).encode(), str(int(self.request_status.get(room, KVPoll.FAILED))).encode(), b"0"]
        self._send_multipart_locked(f"tcp://127.0.0.1:{int(frames[2])}", parts)

    def clear(self, req: Req) -> None:
        """The engine is done with a room."""
        self.request_status.pop(req.bootstrap_room, None)
        self.transfer_infos.pop(req.bootstrap_room, None)
        self.call("sender-cleared", lambda _s: None, SimpleNamespace(bootstrap_room=req.bootstrap_room))


class Receiver:
    """Decode's end of one transfer."""

    def __init__(self, side: "Decode", req: Req) -> None:
        self.side, self.bootstrap_room = side, req.bootstrap_room
        self.conclude_state: KVPoll | None = None
        self.bootstrap_infos = [
            {"rank_ip": "127.0.0.1", "rank_port": port, "is_dummy": False} for port in side.prefill_ports
        ]
        self.session_id = side.engine.session_id
        side.update_status(self.bootstrap_room, KVPoll.BOOTSTRAPPING)

    def _connect_to_bootstrap_server(self, info: dict[str, Any]) -> tuple[Any, threading.Lock]:
        socket = Socket(self.side.network[info["rank_port"]])
        result: tuple[Any, threading.Lock] = self.side.call(
            "prefill-reached", lambda _info: (socket, threading.Lock()), info
        )
        return result

    def _register_kv_args(self) -> None:
        self.send([b"None", b"127.0.0.1", str(self.side.port).encode(), self.session_id.encode()])

    def send(self, frames: list[bytes]) -> None:
        """Write to each rank of prefill."""
        for info in self.bootstrap_infos:
            socket, lock = self._connect_to_bootstrap_server(info)
            with lock:
                socket.send_multipart(frames)

    def poll(self) -> KVPoll:
        """Give the transfer's state, through the guard."""

        def original(_receiver: Any) -> KVPoll:
            return self.side.request_status.get(self.bootstrap_room, KVPoll.FAILED)

        if self.conclude_state is not None:
            return self.conclude_state
        state: KVPoll = self.side.call("receiver-polled", original, self)
        return state

    def abort(self) -> None:
        """A client went away."""
        self.side.update_status(self.bootstrap_room, KVPoll.FAILED)
        self.send([b"ABORT", str(self.bootstrap_room).encode()])

    def clear(self) -> None:
        """The engine is done with it."""
        self.side.call("receiver-cleared", lambda _r: self.side.request_status.pop(self.bootstrap_room, None), self)


class ProbeReceiver:
    """SGLang's stand-in for a transfer, in requests that name nobody: a success as soon as it knows the pages."""

    def __init__(self, side: "Decode", req: Req) -> None:
        self.side, self.bootstrap_room, self.knows = side, req.bootstrap_room, False

    def send_metadata(self, kv_indices: np.ndarray, aux_index: int | None = None) -> None:
        """Hear of the pages."""
        del kv_indices, aux_index
        self.knows = True

    def poll(self) -> KVPoll:
        """Give the transfer's state, which no prefill changes."""
        return KVPoll.SUCCESS if self.knows else KVPoll.WAITING

    def clear(self) -> None:
        """The engine is done with it."""


class Decode(Side):
    """A decode rank."""

    def __init__(self, port: int, prefill: int, network: dict[int, deque[list[bytes]]], guard: dict[str, Any]) -> None:
        super().__init__("decode", port, network, guard)
        self.prefill_ports = [prefill]
        self.gloo_group = None
        self.free = deque(range(PAGES))
        self.rows = deque(range(ROWS))
        self.waiting: list[tuple[Req, Any]] = []
        self.queue: list[tuple[Req, Any, list[int], int]] = []
        self.running: dict[str, list[int]] = {}
        PEERS[port] = self

    def submit(self, req: Req) -> None:
        """A request arrives."""
        self._make(req)
        self.call("decode-admits", lambda _queue, one: self._add(one), self, req)

    def _add(self, req: Req) -> None:
        if self.stand_in.keeps_out(req):
            return
        if req.bootstrap_host == FAKE_HOST:
            self.waiting.append((req, ProbeReceiver(self, req)))
            return
        receiver = Receiver(self, req)
        self.call("receiver-made", lambda _r: None, receiver)
        if "met" not in self.connection_pool:
            receiver._register_kv_args()
            self.connection_pool["met"] = True
        self.waiting.append((req, receiver))

    def _preallocate(self, _queue: Any) -> tuple[list[Any], list[Any]]:
        placed = []
        for req, receiver in list(self.waiting):
            if receiver.poll() is KVPoll.FAILED:
                self.waiting.remove((req, receiver))
                self._end(req, receiver, "handshake failed")
            elif len(self.free) * PAGE >= req.num_tokens:
                self.waiting.remove((req, receiver))
                self.call("decode-reserves", lambda **_n: None, req=req, fill_len=req.num_tokens)
                pages = [self.free.popleft() for _ in range(-(-req.num_tokens // PAGE))]
                row = self.rows.popleft()
                self._send_metadata(receiver, pages, row)
                placed.append((req, receiver, pages, row))
        return placed, []

    def _send_metadata(self, receiver: Any, pages: list[int], row: int) -> None:
        if isinstance(receiver, ProbeReceiver):
            self.call("probe-told", ProbeReceiver.send_metadata, receiver, np.array(pages), row)
            return
        own = [b"127.0.0.1", str(self.port).encode(), receiver.session_id.encode()]
        what = [np.array(pages, np.int32).tobytes(), str(row).encode(), b"", b"1", b"0", b""]
        receiver.send([str(receiver.bootstrap_room).encode(), *own, *what])

    def hear(self) -> None:
        """Read what prefill says, as SGLang's thread does."""
        for frames in self.messages():
            room, status = int(frames[0]), KVPoll(int(frames[1]))
            if room in self.request_status:
                self.update_status(room, status)

    def turn(self) -> None:
        """One turn of the scheduler, with what arrived before it."""
        self.hear()
        self.call("decode-turns", lambda _queue: None, self)
        self.queue += self.call("decode-places", self._preallocate, self)[0]
        polls = [receiver.poll() for _, receiver, _, _ in self.queue]
        for entry, poll in list(zip(self.queue, polls, strict=True)):
            if poll in (KVPoll.SUCCESS, KVPoll.FAILED):
                self.queue.remove(entry)
                self._conclude(entry, poll)

    def _conclude(self, entry: tuple[Req, Any, list[int], int], poll: KVPoll) -> None:
        req, receiver, pages, row = entry
        if poll is KVPoll.SUCCESS:
            receiver.clear()
            self.running[req.rid] = pages
        else:
            self._end(req, receiver, "transfer failed")
            self.release(req, pages)
        self.call("row-freed", lambda _rows, one: self.rows.append(one), self.rows, row)

    def _end(self, req: Req, receiver: Any, message: str) -> None:
        receiver.clear()
        self.call("decode-aborts", self._abort, req, message, status_code=500)
        self.answers.append(req)

    def _abort(self, req: Req, message: str, status_code: int) -> None:
        req.finished_reason = FINISH_ABORT(message, int(status_code))

    def finish(self, req: Req) -> None:
        """A running request has had its last token."""
        self.release(req, self.running.pop(req.rid))

    def release(self, req: Req, pages: list[int]) -> None:
        """Give pages back."""
        self.call("decode-releases", lambda _req: self.free.extend(pages), req)

    @property
    def is_holding(self) -> bool:
        """Does the engine take missing pages for held, and not for lost?"""
        return bool(self.call("decode-holds", lambda _queue: False, self))


PEERS: dict[int, Decode] = {}
"""Whose memory a write lands in, by the port that its message names."""


class Pair:
    """A prefill and a decode rank. ``prefill``, ``decode``: the guard of each: ``mode``, ``key``, ``without``."""

    def __init__(self, prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None) -> None:
        network: dict[int, deque[list[bytes]]] = {}
        self.prefill = Prefill(100, network, prefill or {})
        self.decode = Decode(200, 100, network, decode or {})

    def offer(self, req: Req, at_prefill: Req | None = None) -> None:
        """Both roles get a request, and decode's offer reaches prefill."""
        self.decode.submit(req)
        self.prefill.submit(at_prefill or req)
        self.decode.turn()
        self.prefill.pump()
        self.decode.turn()

    def hand_off(self, req: Req, pages: Sequence[int], at_prefill: Req | None = None) -> None:
        """The whole of it, up to decode's answer."""
        self.offer(req, at_prefill)
        self.prefill.send(at_prefill or req, pages)
        while self.prefill.posted:
            self.prefill.begin()()
        self.decode.turn()

    def settle(self, turns: int = 3) -> None:
        """Let messages go to and fro."""
        for _ in range(turns):
            self.prefill.pump()
            self.decode.turn()
