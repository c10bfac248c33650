"""A stand-in for Mooncake's engine inside one process: real listening sockets, real memory, faults on request.

It keeps what the real one was seen to do: addresses outside registered memory are refused, a destroyed engine is
gone. Not for: late bytes, which only the real engine shows (``tests/mooncake``).
"""

import ctypes
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from types import ModuleType
from weakref import WeakValueDictionary

import pytest


class FakeEngine:
    """One engine. Faults are class attributes: what a worse engine would do."""

    living: "WeakValueDictionary[str, FakeEngine]" = WeakValueDictionary()
    kept: list["FakeEngine"] = []
    outlives: bool = False
    """A destroyed engine goes on taking writes."""
    careless: bool = False
    """Success is said before anything has landed."""
    unbounded: bool = False
    """Addresses are not checked."""
    status: int | None = None
    """What every write returns instead of being done."""

    def __init__(self) -> None:
        self.memory: dict[int, int] = {}
        self.sockets: list[socket.socket] = []
        self.name = ""

    def initialize(self, host: str, metadata: str, protocol: str, device: str) -> int:
        """Listen on two ports of every interface, as the real one does."""
        assert (metadata, protocol, device) == ("P2PHANDSHAKE", "tcp", "")
        for _ in range(2):
            listener = socket.create_server(("0.0.0.0", 0))
            self.sockets.append(listener)
        Thread(target=_answer, args=(self.sockets[0],), daemon=True).start()
        self.name = f"{host}:{self.get_rpc_port()}"
        FakeEngine.living[self.name] = self
        return 0

    def get_rpc_port(self) -> int:
        """Give the first port."""
        return int(self.sockets[0].getsockname()[1])

    def register_memory(self, base: int, nbytes: int) -> int:
        """Take memory."""
        self.memory[base] = nbytes
        return 0

    def unregister_memory(self, base: int) -> int:
        """Give memory back."""
        if FakeEngine.outlives:
            FakeEngine.kept.append(self)
            self._fall_silent()
        else:
            del self.memory[base]
        return 0

    def __del__(self) -> None:
        """End this life with its last reference, as the real one does."""
        self._fall_silent()

    def _fall_silent(self) -> None:
        for listener in self.sockets:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.sockets.clear()

    def _holds(self, base: int, nbytes: int) -> bool:
        if FakeEngine.unbounded:
            return True
        return any(start <= base and base + nbytes <= start + size for start, size in self.memory.items())

    def batch_transfer_sync_write(self, to: str, sources: list[int], targets: list[int], sizes: list[int]) -> int:
        """Copy, or refuse at the first address that is not registered."""
        peer = FakeEngine.living.get(to)
        if FakeEngine.status is not None:
            return FakeEngine.status
        if peer is None:
            return -1
        for source, target, nbytes in zip(sources, targets, sizes, strict=True):
            assert self._holds(source, nbytes)
            if not peer._holds(target, nbytes):
                return -1
            landing = any(start <= target < start + size for start, size in peer.memory.items())
            if landing and not FakeEngine.careless and peer not in FakeEngine.kept:
                ctypes.memmove(target, source, nbytes)
        return 0

    def transfer_sync_read(self, to: str, source: int, target: int, nbytes: int) -> int:
        """Copy the other way."""
        peer = FakeEngine.living.get(to)
        if peer is None or not peer._holds(target, nbytes):
            return -1
        ctypes.memmove(source, target, nbytes)
        return 0


def _answer(listener: socket.socket) -> None:
    """Say that this engine is there, to whoever asks."""
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection:
                if connection.recv(64):
                    connection.sendall(b"here")


@contextmanager
def fake_mooncake(**faults: object) -> Iterator[type[FakeEngine]]:
    """Put the stand-in where Mooncake would be imported from, with these faults."""
    package, engine = ModuleType("mooncake"), ModuleType("mooncake.engine")
    engine.TransferEngine = FakeEngine  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MC_TRANSFER_TIMEOUT", "MC_LOG_LEVEL", "MC_TCP_BIND_ADDRESS", "MC_TCP_PROTO"):
            patch.setenv(name, "")  # so that it is put back
        patch.setitem(sys.modules, "mooncake", package)
        patch.setitem(sys.modules, "mooncake.engine", engine)
        patch.setattr(FakeEngine, "living", WeakValueDictionary())
        patch.setattr(FakeEngine, "kept", [])
        for name, value in faults.items():
            patch.setattr(FakeEngine, name, value)
        yield FakeEngine
