"""The scheduler's half of the guard: what each of vLLM's calls means to prefill, decode and the ledger.

In ``observe`` nothing that vLLM does is changed, but that a receive is verified before it is told.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from kvfence.core.invariant import require
from kvfence.guard.settings import GuardSettings
from kvfence.guard.vllm.decode import DecodeFence
from kvfence.guard.vllm.facts import Facts
from kvfence.guard.vllm.ledger import Broken, Ledger, Tables
from kvfence.guard.vllm.manifest import FIELD
from kvfence.guard.vllm.orders import Orders, Report
from kvfence.guard.vllm.prefill import PrefillFence
from kvfence.guard.vllm.tally import Tally

Blocks = Sequence[Sequence[int]]


class SchedulerFence:
    """One engine's half; it may be prefill, decode or both."""

    def __init__(self, settings: GuardSettings, facts: Facts) -> None:
        self._facts = facts
        self._enforces = settings.enforces
        self.tally = Tally(facts.role, enforces=settings.enforces)
        self._prefill = PrefillFence(settings.key, facts, self.tally.refuse, enforces=settings.enforces)
        self._decode = DecodeFence(settings.key, facts, enforces=settings.enforces)
        self._ledger: Ledger | None = None
        self._orders = Orders()

    def meet_pool(self, pool: Any) -> None:
        """Take vLLM's live block pool."""
        self._ledger = Ledger(pool)

    @property
    def ledger(self) -> Ledger:
        """Give the serials.

        Raises:
            InvariantBroken: vLLM has not bound its pool.
        """
        require(self._ledger is not None, "vLLM schedules before it has bound its block pool")
        return self._ledger  # type: ignore[return-value]

    # ---- a request's life ----

    def comes(self, request: Any) -> None:
        """A request came: its hand-off is judged, or the one that it asks for is noted."""
        params = request.kv_transfer_params
        if not params:
            return
        if params.get("do_remote_decode"):
            self._prefill.admit(request)
        elif FIELD in params or params.get("do_remote_prefill"):
            verdict = self._decode.judge(request)
            self.tally.note(verdict.decisions if verdict.holds else verdict.decisions[:-1])
            if not verdict.holds:
                self.tally.refuse(request.request_id, verdict.decisions[-1].guard, verdict.reason)

    def fails(self, request_id: str) -> bool:
        """Is this request to fail, since its hand-off was refused?"""
        return self._facts.fails and self._decode.is_refused(request_id)

    def fail(self, request_id: str, blocks: Blocks) -> None:
        """Let a refused request fail with this step: nothing was read into its blocks."""
        self._orders.refused[request_id] = tuple(chain.from_iterable(blocks))

    def ended(self, request_id: str, params: dict[str, Any] | None) -> None:
        """A request ended at prefill, with the parameters that vLLM will send."""
        self._prefill.ended(request_id, params)

    # ---- a step ----

    def order(self, output: Any, receives: dict[str, Any]) -> Orders:
        """Check a step's tables and say what the worker has to do; a receive that cannot hold is taken out."""
        tables: Tables = output.kv_connector_block_state.get_block_ids
        orders, self._orders = self._orders, Orders()
        for request_id in [name for name, each in receives.items() if any(each.local_block_ids)]:
            self._receive(request_id, receives, orders)
        for request_id, number in output.num_scheduled_tokens.items():
            order = self._prefill.completed(request_id, number, tables)
            if order is not None:
                orders.seal[request_id] = order
        broken = [*self._note_tables(output), *self.ledger.step(output.num_scheduled_tokens, tables)]
        if broken:
            self._broken(broken, orders)
        return orders

    def _receive(self, request_id: str, receives: dict[str, Any], orders: Orders) -> None:
        local = receives[request_id].local_block_ids
        if not self._enforces and not self._decode.is_taken(request_id):
            return  # refused when it came, and served all the same
        order = self._decode.expects(request_id, local)
        if not isinstance(order, str):
            orders.receive[request_id] = order
            self.ledger.extend(request_id, chain.from_iterable(local))
            return
        self.tally.refuse(request_id, "count-matches", order)
        if self._enforces:
            del receives[request_id]
            orders.refused[request_id] = tuple(chain.from_iterable(local))

    def _note_tables(self, output: Any) -> list[Broken]:
        """Follow what the step changes in tables, as the workers will."""
        broken: list[Broken] = []
        for request_id in output.finished_req_ids:
            self.ledger.forget(request_id)
            self._decode.forget(request_id)
        for new in output.scheduled_new_reqs:
            broken += self.ledger.extend(new.req_id, chain.from_iterable(new.block_ids))
        cached = output.scheduled_cached_reqs
        for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if request_id in cached.resumed_req_ids:
                self.ledger.forget(request_id)
            if blocks is not None:
                broken += self.ledger.extend(request_id, chain.from_iterable(blocks))
        return broken

    def _broken(self, broken: Iterable[Broken], orders: Orders) -> None:
        """A scheduled table names a block of another use: whoever computes on that block fails, before a token leaves.

        With several KV cache groups vLLM has no way to fail a running request, so that the engine ends.
        """
        for one in broken:
            words = f"block {one.block} was of use {one.expected} and is of use {one.serial}"
            self.tally.refuse(one.request, "stamp-at-read", words)
            if self._enforces:
                require(len(self._facts.block_tokens) == 1, f"a step's table does not hold: {words}")
                orders.broken.add(one.block)

    def outcome(self, report: Report | None, finished: Iterable[str], failed: Iterable[str]) -> None:
        """A step's outcome: hand-offs that ended are promised, blocks that may still be written to are held."""
        said = report or Report()
        self._prefill.promise(said.sealed, self.ledger)
        for request_id, holds in said.verified.items():
            if holds:
                self.tally.passed("digest-matches")
            else:
                self.tally.refuse(request_id, "digest-matches", "the bytes that landed are not those that prefill sent")
        for _ in range(said.late):
            self.tally.refuse("unknown", "hold-source", "a decode had read blocks whose lease was over")
        for request_id in said.undrained:
            blocks = self._decode.landing(request_id)
            self.ledger.hold(blocks)
            self.tally.hold(len(blocks))
            words = f"{len(blocks)} blocks stay out of the pool: a read into them failed, and may still land"
            self.tally.refuse(request_id, "drain-or-fence", words)
        for request_id in failed:
            self.ledger.forget(request_id)
        for request_id in finished:
            self._decode.landed(request_id)
