"""One life of Mooncake's transfer engine in this process: opened, one buffer registered, destroyed whole.

What it leaves open and is closed here: both of its ports listen on every interface whatever address it is given, and
whoever reaches them reads and writes registered memory. A packet filter on the two sockets drops what is not sent to
the engine's own address. Its calls say 0 or -1 and nothing more; after -1 bytes may still land, and it may still read
its source, until the engine at that end is destroyed. Destroying one takes up to a second with the interpreter held.

Not for: sessions, batches and what they prove (``mooncake.py``).
"""

import ctypes
import importlib
import ipaddress
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
from msgspec import Struct

from kvfence.core.errors import SettingsError, TransportError

INSTALL = "pip install '.[mooncake]'"
LIBRARIES = "apt-get install libibverbs1 libnuma1"

TIMEOUT_S = 5.0
"""Time after which a batch that has not ended has failed: the least the engine takes, and what we set."""

BATCH_PAGES_MAX = 1024
"""Pages in one call to one peer; calls with more have been seen to fail half-way."""

ANSWER_S = 2.0
"""How long a peer may take to answer before the first batch is sent to it: the engine itself would wait a minute."""

LIVES_MAX = 8
"""Engines opened in search of ports that this process has never used."""

_ENVIRONMENT = {
    "MC_TRANSFER_TIMEOUT": str(int(TIMEOUT_S)),
    "MC_HANDSHAKE_CONNECT_TIMEOUT": "2",
    "MC_LOG_LEVEL": "ERROR",  # one harmless line is left at each start: "Local segment descriptor not found"
}
_SO_ATTACH_FILTER = 26
_NETWORK_HEADER = 0xFFF00000
_PROBE = struct.pack("<QB", 3, 3) + b"{}"
"""Asks an engine whether it is there: the length of what follows, the kind of message, an empty document."""

Protocol = Literal["tcp", "rdma"]


class EngineSpec(Struct, frozen=True):
    """Where an engine lives. ``host``: a numeric IPv4 address of this machine. ``device``: RDMA devices, or empty."""

    host: str
    protocol: Protocol = "tcp"
    device: str = ""


def load_library() -> Any:
    """Import Mooncake's engine.

    Raises:
        SettingsError: it, or a library of the system that it needs, is not there; the message says what to install.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ[name] = value
    if os.environ.get("MC_TCP_PROTO") == "1":
        raise SettingsError(["MC_TCP_PROTO=1: without acknowledged writes success proves nothing; unset it"])
    try:
        return importlib.import_module("mooncake.engine")
    except ModuleNotFoundError:
        raise SettingsError([f"--transport mooncake: Mooncake is not installed: {INSTALL}"]) from None
    except ImportError as error:
        raise SettingsError([f"--transport mooncake: Mooncake cannot be loaded ({error}): {LIBRARIES}"]) from None


def find_protocol(wanted: str, devices: Path = Path("/sys/class/infiniband")) -> Protocol:
    """Give the protocol to use; *auto* is RDMA where this machine has a device for it."""
    if wanted == "auto":
        return "rdma" if devices.is_dir() and any(devices.iterdir()) else "tcp"
    return "rdma" if wanted == "rdma" else "tcp"


class Engine:
    """One life. Its ports are unlike those of every earlier life in this process.

    Owner:
        One thread at a time. The buffer outlives the engine.
    """

    _used: frozenset[int] = frozenset()

    def __init__(self, spec: EngineSpec, buffer: mmap.mmap) -> None:
        self.spec = spec
        self.base = address_of(buffer)
        self.nbytes = len(buffer)
        self._buffer = buffer
        self._raw, self._ports = _open(spec)
        if self._raw.register_memory(self.base, self.nbytes) != 0:
            raise TransportError(f"Mooncake cannot register {self.nbytes} bytes of the pool", "no")
        self.port: int = self._raw.get_rpc_port()

    def write(self, to: str, sources: Sequence[int], targets: Sequence[int], nbytes: int) -> bool:
        """Write pieces of equal size to a peer and say whether all of them were acknowledged; False proves nothing.

        Blocks, with the interpreter free and one core busy, for at most ``TIMEOUT_S`` and a little.
        """
        status = self._raw.batch_transfer_sync_write(to, list(sources), list(targets), [nbytes] * len(sources))
        return bool(status == 0)

    def read(self, to: str, source: int, target: int, nbytes: int) -> bool:
        """Read a peer's memory at ``target`` into ours at ``source``."""
        return bool(self._raw.transfer_sync_read(to, source, target, nbytes) == 0)

    def close(self) -> None:
        """Destroy the engine: nothing is written to its buffer and nothing read from it any more.

        Raises:
            TransportError: it listens still, so it was not destroyed.
        """
        self._raw.unregister_memory(self.base)
        del self._raw
        if not self._ports.isdisjoint(_listening()):
            raise TransportError("a destroyed Mooncake engine still listens", "unknown")


def answers(host: str, port: int, timeout_s: float = ANSWER_S) -> bool:
    """Does an engine answer there, in this time?"""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(_PROBE)
            return bool(connection.recv(64))
    except OSError:
        return False


def address_of(buffer: mmap.mmap) -> int:
    """Give the address at which a buffer is mapped."""
    return int(np.frombuffer(buffer, dtype=np.uint8).ctypes.data)


def _open(spec: EngineSpec) -> tuple[Any, frozenset[int]]:
    """Open an engine whose ports nobody here has had, closed to every address but its own; give it and them."""
    library = load_library()
    os.environ["MC_TCP_BIND_ADDRESS"] = spec.host
    for _ in range(LIVES_MAX):
        before = _listening()
        raw = library.TransferEngine()
        if raw.initialize(spec.host, "P2PHANDSHAKE", spec.protocol, spec.device) != 0:
            raise TransportError(
                f"Mooncake cannot open {spec.protocol} on {spec.host} {spec.device}: see its words above", "no"
            )
        ports = {port: fd for port, fd in _listening().items() if port not in before}
        for fd in ports.values():
            keep_to(fd, spec.host)
        if Engine._used.isdisjoint(ports) and not _connected(ports):
            Engine._used |= ports.keys()
            return raw, frozenset(ports)
        del raw
    raise TransportError(f"Mooncake has found no unused ports in {LIVES_MAX} tries", "no")


def _listening() -> dict[int, int]:
    """TCP ports this process listens on, and their descriptors."""
    sockets = psutil.Process().net_connections("tcp")
    return {entry.laddr.port: entry.fd for entry in sockets if entry.status == psutil.CONN_LISTEN}


def _connected(ports: dict[int, int]) -> bool:
    """Has anybody connected before the filter stood?"""
    sockets = psutil.Process().net_connections("tcp")
    return any(entry.status != psutil.CONN_LISTEN and entry.laddr.port in ports for entry in sockets)


def keep_to(fd: int, host: str) -> None:
    """Make a listening socket, and every connection it accepts, deaf to packets that are not for this address.

    Raises:
        TransportError: the kernel takes no filter.
    """
    wanted = int(ipaddress.IPv4Address(host))
    program = (
        (0x30, 0, 0, _NETWORK_HEADER),  # first byte of the IP header
        (0x74, 0, 0, 4),  # its upper half: the version
        (0x15, 0, 3, 4),  # not IPv4: drop
        (0x20, 0, 0, _NETWORK_HEADER + 16),  # destination address
        (0x15, 0, 1, wanted),
        (0x06, 0, 0, 0xFFFFFFFF),  # accept
        (0x06, 0, 0, 0),  # drop
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    try:
        with socket.socket(fileno=os.dup(fd)) as listener:
            head = struct.pack("HL", len(program), ctypes.addressof(code))
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, head)
    except OSError as error:
        raise TransportError(f"Mooncake's ports cannot be kept to {host}: {error.strerror}", "no") from error
