"""The worker's half of the guard: when vLLM hears of a receive."""

import threading
import time
from typing import Any

import pytest

from kvfence.guard.vllm.orders import Orders, ReceiveOrder
from kvfence.guard.vllm.worker import Results, WorkerFence

BLOCKS = ((1, 2),)


class Memory:
    """Blocks whose digest takes as long as is asked for."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def mark(self) -> None:
        """There is no device."""

    def digests_of(self, blocks: Any, _after: Any) -> bytes:
        """Wait, and give the digest of every block."""
        self.done.wait(30)
        return b"d" * 16 * sum(map(len, blocks))


def waiting(memory: Any) -> WorkerFence:
    """Give a worker that has been told what will land for one request."""
    fence = WorkerFence(0, enforces=True)
    fence.meet_memory(memory)
    fence.take(Orders(receive={"r": ReceiveOrder(BLOCKS, (b"d" * 32,))}))
    return fence


def test_what_is_soon_verified_is_told_in_the_step_that_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short prompt does not wait for another step."""
    monkeypatch.setattr("kvfence.guard.vllm.worker.AT_ONCE_S", 30)
    memory = Memory()
    fence = waiting(memory)
    threading.Timer(0.05, memory.done.set).start()
    assert fence.filter(Results({"r"}, set()), ["r"]) == Results({"r"}, set())
    fence.close()


def test_what_takes_longer_holds_no_step() -> None:
    """The step goes on, and vLLM hears of the receive when it is verified."""
    memory = Memory()
    fence = waiting(memory)
    assert fence.filter(Results({"r"}, set()), ["r"]) == Results(set(), set())
    memory.done.set()
    deadline, told = time.monotonic() + 30, Results(set(), set())
    while not told.finished and time.monotonic() < deadline:
        told = fence.filter(Results(set(), set()), [])
    assert told == Results({"r"}, set())
    fence.close()


def test_what_was_said_of_a_read_that_failed_is_said_of_no_other() -> None:
    """A table that did not hold while the read was under way, and the read failed: the name is free."""
    memory = Memory()
    memory.done.set()
    fence = waiting(memory)
    fence.take(Orders(broken={1}))
    assert fence.filter(Results({"r"}, {"r"}), ["r"]).failed == {"r"}
    fence.take_bad_blocks()
    fence.take(Orders(receive={"r": ReceiveOrder(BLOCKS, (b"d" * 32,))}))
    deadline, told = time.monotonic() + 30, fence.filter(Results({"r"}, set()), ["r"])
    while not told.finished and time.monotonic() < deadline:
        told = fence.filter(Results(set(), set()), [])
    assert told == Results({"r"}, set())
    fence.close()
