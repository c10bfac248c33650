"""Decode's receiving session made new: the old engine is gone, waiters move, and what does not end proves nothing."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvfence.guard.sglang.session import has_ended, rebuild


class Raw:
    """Mooncake's engine: it listens until it is destroyed."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))

    def __del__(self) -> None:
        self.listener.close()


class Shared:
    """SGLang's, which all of a process share."""

    def __init__(self, hostname: str, gpu_id: int | None = None, ib_device: str | None = None) -> None:
        self.hostname, self.gpu_id, self.ib_device = hostname, gpu_id, ib_device
        self.engine: Any = Raw()
        self.session_id = f"127.0.0.1:{self.engine.listener.getsockname()[1]}"


@pytest.fixture
def manager() -> Iterator[Any]:
    """What decode's manager is to the guard, and what was called."""
    calls: list[str] = []
    made = SimpleNamespace(
        engine=Shared("127.0.0.1"),
        calls=calls,
        connection_pool={"prefill": 1},
        register_buffer_to_engine=lambda: calls.append("registered"),
        deregister_buffer_to_engine=lambda: calls.append("given up"),
    )
    yield made
    made.engine.engine = None


def test_the_old_engine_is_destroyed_and_waiters_are_introduced_anew(manager: Any) -> None:
    """Buffers are given up by the old and registered with the new; prefill hears of the new session."""
    old = manager.engine.session_id
    waiting = SimpleNamespace(
        session_id=old, bootstrap_infos=[1], _register_kv_args=lambda: manager.calls.append("introduced")
    )
    unmet = SimpleNamespace(session_id=old, bootstrap_infos=None)
    assert rebuild(manager, [waiting, unmet]) == old
    assert has_ended(old)
    assert manager.calls == ["given up", "registered", "introduced"]
    assert manager.engine.session_id not in (old, "")
    assert waiting.session_id == unmet.session_id == manager.engine.session_id
    assert not manager.connection_pool


def test_an_old_engine_that_lives_on_proves_nothing(manager: Any) -> None:
    """Somebody else holds it, so that it still takes writes: the answer is no."""
    kept = manager.engine.engine
    assert not has_ended(rebuild(manager, []))
    assert kept.listener.fileno() >= 0


@pytest.mark.parametrize("error", [OSError(24, "too many open files"), TimeoutError(), socket.gaierror()])
def test_a_question_that_was_not_answered_proves_nothing(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    """Only a refused connection says that nobody listens; every other failure says something of who asked."""

    def fail(*_given: Any) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", fail)
    assert not has_ended("127.0.0.1:9")
