"""Where vLLM would be stands a stand-in, for these tests alone."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

STAND_IN = Path(__file__).parent / "stand_in"
sys.path.insert(0, str(Path(__file__).parent))

Maker = Callable[..., Any]


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    for name in ("kvfence.guard.vllm.stats",):
        sys.modules.pop(name, None)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in, imported fresh."""
    _forget()
    monkeypatch.syspath_prepend(str(STAND_IN))
    import vllm as stand_in

    yield stand_in
    _forget()


@pytest.fixture
def stock(vllm: Any) -> Maker:
    """Makes engines as shipped."""
    from engines import Engine
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector

    return lambda role, *given, **more: Engine(NixlConnector, role, *given, **more)


@pytest.fixture
def fenced(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> Maker:
    """Makes engines with the guard; ``mode``, ``key``, ``trace`` as an operator sets them."""
    from engines import Engine

    from kvfence.guard.vllm.connector import guarded, stock_connector

    def make(role: str, *given: Any, mode: str = "enforce", key: str = "k" * 32, trace: Any = "", **more: Any) -> Any:
        monkeypatch.setenv("KVFENCE_GUARD_TRACE", str(trace))
        monkeypatch.setenv("KVFENCE_GUARD", mode)
        monkeypatch.setenv("KVFENCE_GUARD_KEY", key)
        return Engine(guarded(stock_connector()), role, *given, **more)

    return make
