"""The worker's half of the guard: digests blocks that leave, verifies blocks that came, before vLLM hears of them.

Verification runs beside the steps, in one thread; a request waits for it where it would have waited for its transfer.
"""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from msgspec import Struct

from kvfence.core.invariant import require
from kvfence.guard.vllm.manifest import Groups
from kvfence.guard.vllm.memory import BlockMemory
from kvfence.guard.vllm.orders import Orders, ReceiveOrder, Report

AT_ONCE_S = 0.002
"""How long a step waits for what it has just begun to verify: a short prompt is not kept for a step more."""


class Results(Struct):
    """What vLLM hears of receives after a step: those that are over, and the failed ones among them."""

    finished: set[str]
    failed: set[str]


class WorkerFence:
    """One rank's half.

    ``enforces``: without it everything is verified and reported, and no receive fails by it. ``whole_receives``: can
    vLLM be told that a receive failed, or only which blocks did?
    """

    def __init__(self, rank: int, *, enforces: bool, whole_receives: bool = True) -> None:
        self._rank = rank
        self._enforces = enforces
        self.whole_receives = whole_receives
        self._memory: BlockMemory | None = None
        self._expected: dict[str, ReceiveOrder] = {}
        self._verifying: dict[str, tuple[ReceiveOrder, Future[bool]]] = {}
        self._posted: set[str] = set()
        self._torn: set[str] = set()
        self._sealing: dict[str, Groups] = {}
        self._refused: dict[str, tuple[int, ...]] = {}
        self._bad_blocks: set[int] = set()
        self._report = Report()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvfence-verify")

    def meet_memory(self, memory: BlockMemory) -> None:
        """Take the caches, once vLLM has allocated them."""
        self._memory = memory

    @property
    def memory(self) -> BlockMemory:
        """Give the caches.

        Raises:
            InvariantBroken: vLLM has not registered them.
        """
        require(self._memory is not None, "vLLM moves blocks before it has registered its caches")
        return self._memory  # type: ignore[return-value]

    def take(self, orders: Orders) -> None:
        """Take one step's orders, before its pass: blocks are made zero now, and sealed after it."""
        for group, block in orders.zero:
            self.memory.zero(group, block)
        self._sealing.update(orders.seal)
        self._expected.update(orders.receive)
        self._refused.update(orders.refused)
        if orders.broken:
            self._bad_blocks |= orders.broken
            open_ = {**self._expected, **{name: order for name, (order, _) in self._verifying.items()}}
            self._torn |= {name for name, order in open_.items() if not orders.broken.isdisjoint(_blocks_of(order))}

    def pass_ended(self) -> None:
        """Digest what this step has completed."""
        for request, blocks in self._sealing.items():
            self._report.sealed[request] = {self._rank: self.memory.digests_of(blocks)}
        self._sealing.clear()

    def filter(self, results: Results, posted: Iterable[str]) -> Results:
        """Hold back receives until they are verified; give those that are.

        ``posted``: receives with reads under way before this poll, so that a write may land after a failure.
        """
        under_way = set(posted)
        self._report.posted.update(under_way.intersection(self._expected) - self._posted)
        self._posted = (self._posted | under_way) & self._expected.keys()
        failed = results.failed | {name for name in results.finished if self._has_bad_block(name)}
        self._report.undrained.update(failed & under_way)
        out = Results(set(failed), set(failed))
        for request in failed:
            self._expected.pop(request, None)
            self._torn.discard(request)
        begun = []
        for request in results.finished - failed:
            order = self._expected.pop(request, None)
            if order is not None:
                begun.append(self._thread.submit(self._holds, order, self.memory.mark()))
                self._verifying[request] = (order, begun[-1])
            else:  # nobody ordered it: there is nothing to compare it with
                out.finished.add(request)
                if self._enforces:
                    self._report.verified[request] = {self._rank: False}
                    out.failed.add(request)
        if begun:
            wait(begun, AT_ONCE_S)
        for request in [name for name, (_, future) in self._verifying.items() if future.done()]:
            self._settle(request, out)
        for request, blocks in self._refused.items():
            self._fail(request, blocks, out)
        self._refused.clear()
        return out

    def _settle(self, request: str, out: Results) -> None:
        """Tell what a verification found; what went wrong in it is a refusal."""
        order, future = self._verifying.pop(request)
        holds = future.exception() is None and future.result() and request not in self._torn
        self._torn.discard(request)
        self._report.verified[request] = {self._rank: holds}
        out.finished.add(request)
        if self._enforces and not holds:
            self._fail(request, _blocks_of(order), out)

    def _fail(self, request: str, blocks: Iterable[int], out: Results) -> None:
        out.finished.add(request)
        out.failed.add(request)
        if not self.whole_receives:
            self._bad_blocks.update(blocks)

    def _holds(self, order: ReceiveOrder, landed: Any) -> bool:
        mine = order.digests[self._rank] if self._rank < len(order.digests) else b""
        return bool(self.memory.digests_of(order.blocks, landed) == mine)

    def _has_bad_block(self, request: str) -> bool:
        order = self._expected.get(request)
        return order is not None and not self._bad_blocks.isdisjoint(_blocks_of(order))

    def note_bad_blocks(self, blocks: set[int]) -> None:
        """Note the blocks that vLLM's half failed to load."""
        self._bad_blocks |= blocks

    def take_bad_blocks(self) -> set[int]:
        """Give the blocks whose users are to fail, once."""
        blocks, self._bad_blocks = self._bad_blocks, set()
        return blocks

    def note_late(self, number: int) -> None:
        """Count reads of blocks whose lease was over when the reader said that it was done."""
        self._report.late += number

    def report(self) -> Report | None:
        """Give what happened since the last time."""
        report, self._report = self._report, Report()
        return report if report else None

    def close(self) -> None:
        """Stop verifying."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _blocks_of(order: ReceiveOrder) -> list[int]:
    return [block for group in order.blocks for block in group]
