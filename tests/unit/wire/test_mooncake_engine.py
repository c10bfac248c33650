"""One life of an engine: what is missing is named, ports are closed to strangers and never used twice."""

import mmap
import socket
import sys
from pathlib import Path

import pytest

from kvfence.core.errors import SettingsError, TransportError
from kvfence.wire.mooncake_engine import Engine, EngineSpec, find_protocol, keep_to, load_library
from tests.fake_mooncake import FakeEngine, fake_mooncake

SPEC = EngineSpec("127.0.0.1")


def connects(host: str, port: int) -> bool:
    """Whether a stranger gets through."""
    try:
        socket.create_connection((host, port), timeout=0.2).close()
    except OSError:
        return False
    return True


def ports_of_the_only_engine() -> list[int]:
    """Where it listens; no reference to it is left, which would keep it alive."""
    return [listener.getsockname()[1] for raw in FakeEngine.living.values() for listener in raw.sockets]


def test_without_mooncake_the_install_line_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is what to type."""
    with fake_mooncake():
        monkeypatch.setitem(sys.modules, "mooncake.engine", None)
        with pytest.raises(SettingsError, match=r"pip install '\.\[mooncake\]'"):
            load_library()


def test_unacknowledged_writes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the old framing success would mean no more than that bytes were sent."""
    with fake_mooncake():
        monkeypatch.setenv("MC_TCP_PROTO", "1")
        with pytest.raises(SettingsError, match="MC_TCP_PROTO"):
            load_library()


@pytest.mark.parametrize(
    ("wanted", "devices", "found"),
    [("tcp", ["mlx5_0"], "tcp"), ("rdma", [], "rdma"), ("auto", ["mlx5_0"], "rdma"), ("auto", [], "tcp")],
)
def test_auto_is_rdma_where_there_is_a_device(tmp_path: Path, wanted: str, devices: list[str], found: str) -> None:
    """What is named is taken; *auto* looks."""
    for device in devices:
        (tmp_path / device).touch()
    assert find_protocol(wanted, tmp_path) == found
    assert find_protocol("auto", tmp_path / "nothing") == "tcp"


def test_a_port_hears_its_own_address_only() -> None:
    """The engine listens on every interface; what is not sent to the named address is dropped."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        assert connects("127.0.0.2", port)
        keep_to(listener.fileno(), "127.0.0.1")
        assert not connects("127.0.0.2", port)
        assert connects("127.0.0.1", port)


def test_a_port_of_both_kinds_hears_its_own_address_only() -> None:
    """A socket for IPv6 and IPv4, which the data port is, hears the one IPv4 address and no IPv6."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        port = listener.getsockname()[1]
        keep_to(listener.fileno(), "127.0.0.1")
        assert connects("127.0.0.1", port)
        assert not connects("127.0.0.2", port)
        assert not connects("::1", port)


def test_an_engine_is_closed_to_strangers_and_its_ports_are_new() -> None:
    """Both ports of every life, and no port of one life is a port of another."""
    with fake_mooncake():
        ports: list[int] = []
        for _ in range(3):
            buffer = mmap.mmap(-1, 4096)
            engine = Engine(SPEC, buffer)
            mine = ports_of_the_only_engine()
            assert not any(connects("127.0.0.2", port) for port in mine)
            ports += mine
            engine.close()
        assert len(set(ports)) == 6


def test_an_engine_that_was_not_destroyed_is_no_fence() -> None:
    """While somebody still holds it, it listens and may write: closing it is an error, and nothing may be freed."""
    with fake_mooncake():
        engine = Engine(SPEC, mmap.mmap(-1, 4096))
        held = list(FakeEngine.living.values())
        with pytest.raises(TransportError, match="still listens"):
            engine.close()
        del held


def test_a_data_port_that_outlives_its_engine_is_no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ports must be gone: bytes do not come in through the one by which peers ask."""

    def fall_half_silent(self: FakeEngine) -> None:
        self.sockets.pop(0).close()

    with fake_mooncake():
        engine = Engine(SPEC, mmap.mmap(-1, 4096))
        ((_, data),) = [each.sockets for each in FakeEngine.living.values()]
        monkeypatch.setattr(FakeEngine, "_fall_silent", fall_half_silent)
        with data, pytest.raises(TransportError, match="still listens"):
            engine.close()


def test_used_ports_are_not_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only used ones are to be had, there is no new session, and no quarantine ends by it."""
    with fake_mooncake():
        monkeypatch.setattr(Engine, "_used", frozenset(range(1, 65536)))
        with pytest.raises(TransportError, match="no unused ports"):
            Engine(SPEC, mmap.mmap(-1, 4096))


def test_an_engine_that_cannot_open_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host and protocol are in the message."""
    with fake_mooncake():
        monkeypatch.setattr(FakeEngine, "initialize", lambda *_: -1)
        with pytest.raises(TransportError, match=r"tcp on 127\.0\.0\.1"):
            Engine(SPEC, mmap.mmap(-1, 4096))
