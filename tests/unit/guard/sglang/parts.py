"""What an SGLang pair's stand-in (``standin.py``) is made of: requests, buffers, sockets, and what the guard calls."""

import ctypes
from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np

PAGES, ITEM, BUFFERS, PAGE = 16, 32, 4, 4
ROWS, BESIDE = 4, 24
KEY = "k" * 32


class KVPoll(IntEnum):
    """SGLang's states of a transfer."""

    FAILED = 0
    BOOTSTRAPPING = 1
    WAITING = 2
    SUCCESS = 4


class FINISH_ABORT:
    """SGLang's refusal."""

    def __init__(self, message: str, status_code: int) -> None:
        self.message, self.status_code = message, status_code


class StandInEngine:
    """What the guard calls by name."""

    def __init__(self) -> None:
        self.others: list[bool] = []
        self.has_door = False
        self.full: set[str] = set()
        self.backend = "MooncakeKVManager"

    def name(self) -> str:
        """Give what it stands in for."""
        return "sglang stand-in"

    def manager(self, manager: Any) -> str:
        """As SGLang's over Mooncake, where a test does not say otherwise."""
        del manager
        return self.backend

    def poll(self, name: str) -> KVPoll:
        """Give a state by SGLang's name."""
        return KVPoll[name.upper()]

    def prepare_abort(self, req: Any, message: str, status: int) -> None:
        """End a request."""
        req.finished_reason = FINISH_ABORT(message, status)

    def finish_abort(self, req: Any, message: str) -> None:
        """End a running request."""
        req.to_finish = FINISH_ABORT(message, 500)

    def keeps_out(self, req: Any) -> bool:
        """As releases from 0.5.21 on do, where a test says so."""
        return self.has_door and req.to_finish is not None

    def agree(self, flags: Sequence[bool], _group: Any) -> list[bool]:
        """This rank's flags, and those of another rank where a test has set them."""
        return [flag and (self.others[at] if at < len(self.others) else True) for at, flag in enumerate(flags)]

    def send_to(self, manager: Any, address: str, frames: list[bytes]) -> bool:
        """Send, to who takes messages."""
        if address not in self.full:
            manager.network[int(address.rpartition(":")[2])].append(frames)
        return address not in self.full

    def send_nowait(self, socket: Any, frames: list[bytes]) -> bool:
        """Send."""
        socket.send_multipart(frames)
        return True


class Req:
    """A request as both roles know it."""

    def __init__(self, room: int, num_tokens: int, refused: str = "") -> None:
        self.rid = f"r{room}-{id(self)}"
        self.bootstrap_room: Any = room
        self.bootstrap_host: Any = "127.0.0.1"
        self.num_tokens = num_tokens
        self.origin_input_ids = [0] * (1 if refused else num_tokens)
        self.to_finish = FINISH_ABORT(refused, 400) if refused else None
        self.finished_reason: Any = None
        self.is_of_no_session = False
        self.return_logprob = False
        self.extend_end = len(self.origin_input_ids)
        self.kv = SimpleNamespace(req_pool_idx=None, kv_allocated_len=0)


class Memory:
    """One role's buffers, of ``item`` bytes a page."""

    def __init__(self, seed: int, item: int = ITEM) -> None:
        rng = np.random.default_rng(seed)
        self.raw = [rng.integers(0, 256, PAGES * item, dtype=np.uint8) for _ in range(BUFFERS)]
        self.beside = rng.integers(0, 256, ROWS * BESIDE, dtype=np.uint8)
        self.args = SimpleNamespace(
            state_types=[],
            kv_data_ptrs=[raw.ctypes.data_as(ctypes.c_void_p).value for raw in self.raw],
            kv_data_lens=[raw.nbytes for raw in self.raw],
            kv_item_lens=[item] * BUFFERS,
            aux_data_ptrs=[self.beside.ctypes.data_as(ctypes.c_void_p).value],
            aux_data_lens=[self.beside.nbytes],
            aux_item_lens=[BESIDE],
            kv_cache_dtype_str="torch.float32",
            page_size=PAGE,
        )


class Empty(Exception):
    """Nothing has arrived."""


class Socket:
    """One end of a message queue."""

    def __init__(self, inbox: deque[list[bytes]]) -> None:
        self.inbox = inbox

    def recv_multipart(self) -> list[bytes]:
        """Give the oldest message."""
        if not self.inbox:
            raise Empty
        return self.inbox.popleft()

    def send_multipart(self, frames: list[bytes], *_: Any) -> None:
        """Put one in."""
        self.inbox.append(frames)


class Pool:
    """An allocator of which nothing is asked here: ``test_at_pool.py`` does that."""

    size, page_size, device = PAGES * PAGE, PAGE, "cpu"
