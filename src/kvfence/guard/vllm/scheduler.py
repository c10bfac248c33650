"""The scheduler's half of the guard: what each of vLLM's calls means to prefill, decode and the ledger.

In ``observe`` nothing that vLLM does or holds is changed, but that a receive is verified before it is told.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Any

from kvfence.core.ids import Incarnation, new_incarnation
from kvfence.core.invariant import require
from kvfence.guard.settings import GuardSettings
from kvfence.guard.vllm.decode import DecodeFence
from kvfence.guard.vllm.facts import Facts
from kvfence.guard.vllm.ledger import Broken, Ledger, Tables
from kvfence.guard.vllm.manifest import FIELD
from kvfence.guard.vllm.orders import Orders, Report
from kvfence.guard.vllm.prefill import PrefillFence
from kvfence.guard.vllm.tally import Tally
from kvfence.guard.watcher import Engine, Watcher
from kvfence.protocol.admission import Capacity
from kvfence.protocol.guards import Place
from kvfence.protocol.watched import Checked

PREFILL: Place = "prefill"
DECODE: Place = "decode"
UNSEEN: dict[Place, tuple[str, ...]] = {PREFILL: ("door", "reserve", "post", "release", "pass"), DECODE: ("door",)}
"""What a connector does not see: prefill is read from without being asked, and a refused request does not reach it."""

CHECKED_TABLES = 1000
"""After so many tables that held, the trace says so once."""

Blocks = Sequence[Sequence[int]]


class SchedulerFence:
    """One engine's half; it may be prefill, decode or both."""

    def __init__(self, settings: GuardSettings, facts: Facts) -> None:
        self._facts = facts
        self._enforces = settings.enforces
        self.tally = Tally(facts.role, enforces=settings.enforces)
        prefill, decode = (_watcher(settings, facts, each) for each in (PREFILL, DECODE))
        self._watchers = (prefill[1], decode[1])
        self._prefill = PrefillFence(settings.key, facts, *prefill, enforces=settings.enforces)
        self._decode = DecodeFence(settings.key, facts, decode[1], enforces=settings.enforces)
        self._ledger: Ledger | None = None
        self._orders = Orders()
        self._num_tables = 0
        self._found: dict[str, dict[int, bool]] = {}
        self._read: set[str] = set()
        """Requests whose blocks were read and are used, before their first pass."""

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
        elif getattr(request, "abort_immediately", False):  # one that was refused or never began: vLLM tells prefill so
            self._decode.drop(params)
        elif FIELD in params or params.get("do_remote_prefill"):
            verdict = self._decode.judge(request)
            self.tally.note(verdict.decisions if verdict.holds else verdict.decisions[:-1])
            if not verdict.holds:
                self.tally.refuse(request.request_id, verdict.decisions[-1].guard, verdict.reason)
            for words in self._decode.take_differences():
                self.tally.warn("fits", words)

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
        tables = self._tables_of(output)
        orders, self._orders = self._orders, Orders()
        torn = [Broken(name, block, -1, -1) for name, block in self._decode.granted(self.ledger.granted)]
        for request_id in [name for name, each in receives.items() if any(each.local_block_ids)]:
            self._receive(request_id, receives, orders)
            if request_id in receives:
                torn += self.ledger.extend(request_id, chain.from_iterable(receives[request_id].local_block_ids))
        for request_id, number in output.num_scheduled_tokens.items():
            self._prefill.order(request_id, number, tables, self.ledger, orders)
        broken = [*torn, *self._note_tables(output), *self.ledger.step(output.num_scheduled_tokens, tables)]
        self._note(broken, len(output.num_scheduled_tokens))
        if self._enforces:
            for one in broken:
                self._stop(one, _computed(output), tables, orders)
        return orders

    def _tables_of(self, output: Any) -> Tables:
        """0.29 shows the tables that a step changed; for other scheduled ones stands what was followed."""
        state = output.kv_connector_block_state
        if hasattr(state, "get_block_ids"):
            tables: Tables = state.get_block_ids
            return tables
        shown, scheduled = state.block_ids, output.num_scheduled_tokens
        return lambda name: shown.get(name) or (self.ledger.followed(name) if name in scheduled else None)

    def _receive(self, request_id: str, receives: dict[str, Any], orders: Orders) -> None:
        local = receives[request_id].local_block_ids
        if not self._enforces and not self._decode.is_taken(request_id):
            self._decode.read_all_the_same(request_id, local)  # refused when it came
            return
        order = self._decode.expects(request_id, local)
        if not isinstance(order, str):
            orders.receive[request_id] = order
            return
        self.tally.refuse(request_id, "count-matches", order)
        if self._enforces:
            del receives[request_id]
            orders.refused[request_id] = tuple(chain.from_iterable(local))
        else:
            self._decode.read_all_the_same(request_id, local)

    def _note_tables(self, output: Any) -> list[Broken]:
        """Follow what the step changes in tables, as the workers will."""
        broken: list[Broken] = []
        for request_id in output.finished_req_ids:
            self._forget_table(request_id)
            self._decode.forget(request_id)
        for new in output.scheduled_new_reqs:  # or one that comes again, after it had been preempted
            if new.req_id not in self._read:
                self.ledger.forget(new.req_id)
            self._read.discard(new.req_id)
            broken += self.ledger.begin(new.req_id, [*chain.from_iterable(new.block_ids)])
        cached = output.scheduled_cached_reqs
        for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if request_id in cached.resumed_req_ids:
                self.ledger.forget(request_id)
            if blocks is not None:
                broken += self.ledger.extend(request_id, chain.from_iterable(blocks))
        return broken

    def _forget_table(self, request_id: str) -> None:
        """A request has ended, or what it read is not used: vLLM gives it other blocks, if any."""
        self.ledger.forget(request_id)
        self._read.discard(request_id)

    def _note(self, broken: Iterable[Broken], num_tables: int) -> None:
        """Count a step's tables, and say of which blocks they do not hold."""
        self._num_tables += num_tables
        if self._num_tables >= CHECKED_TABLES:
            self._say_checked()
        for one in broken:
            self._decode.misread(one.request, one.block)
            self.tally.refuse(one.request, "stamp-at-read", _words(one))

    def _stop(self, one: Broken, computed: dict[str, int], tables: Tables, orders: Orders) -> None:
        """A scheduled table names a block of another use: whoever computes on that block fails, before a token leaves.

        vLLM fails a running request by a block of what was computed before the step, and by no other: the last such
        block is named beside the broken one. A pass that writes into the block spoils it for its new holder too. Where
        nothing was computed, where vLLM computes again in the same table (``recompute``), and with several KV cache
        groups, vLLM has no way to fail the request, so that the engine ends.
        """
        words, sizes = f"a step's table does not hold: {_words(one)}", self._facts.block_tokens
        require(len(sizes) == 1, words)
        orders.broken.add(one.block)
        if one.request not in computed:  # a receive, which fails as one
            return
        (table,) = tables(one.request) or ([],)
        writes = one.block in table[computed[one.request] // sizes[0] :]
        for request in {one.request, *(self.ledger.holders(one.block) if writes else ())}.intersection(computed):
            (table,) = tables(request) or ([],)
            has = table[: -(-computed[request] // sizes[0])]
            require(self._facts.fails and bool(has), words)
            orders.broken.add(has[-1])

    def _say_checked(self) -> None:
        number, self._num_tables = self._num_tables, 0
        blocks, self.ledger.checked = self.ledger.checked, 0
        self._watchers[1].see(Checked(number, blocks))

    def outcome(self, report: Report | None, finished: Collection[str], failed: Collection[str]) -> None:
        """A step's outcome: hand-offs that ended are promised, blocks that may still be written to are held."""
        said = report or Report()
        self._prefill.promise(said.sealed, self.ledger, self.tally.refuse)
        for request_id in said.posted:
            self._decode.posted(request_id)
        for request_id, found in said.verified.items():
            self._found.setdefault(request_id, {}).update(found)
        if said.late:
            self.tally.late(said.late)
        self._agree(finished)
        for request_id in said.undrained:
            self._hold(request_id, "a read into them failed, and may still land")
        for request_id in (*said.undrained, *failed):
            self._forget_table(request_id)
        for request_id in finished:
            self._decode.landed(request_id, failed=request_id in failed)

    def _agree(self, finished: Collection[str]) -> None:
        """What the ranks found becomes one answer once all have said theirs: what one refuses is adopted on none.

        A receive that is over without all of them failed on the others.
        """
        for request_id, ranks in list(self._found.items()):
            complete, holds = len(ranks) == self._facts.ranks, all(ranks.values())
            if complete or request_id in finished:
                del self._found[request_id]
                if complete or not holds:
                    self._verified(request_id, holds=holds)

    def _verified(self, request_id: str, *, holds: bool) -> None:
        decided = self._decode.compared(request_id, holds=holds)
        if holds or not self._enforces:
            if self._decode.is_taken(request_id):  # and has not ended meanwhile
                self._read.add(request_id)
        else:
            self._forget_table(request_id)
        if holds:
            self.tally.passed("digest-matches")
            return
        guard = decided[-1].guard if decided else "digest-matches"
        self.tally.refuse(request_id, guard, "the bytes that landed are not those that prefill sent")
        self._hold(request_id, "what landed in them was not what was sent, so that somebody else may write to them")

    def _hold(self, request_id: str, why: str) -> None:
        blocks = self._decode.held(request_id)
        if blocks:
            self.ledger.hold(blocks)
            self.tally.hold(len(blocks))
            self.tally.refuse(request_id, "drain-or-fence", f"{len(blocks)} blocks stay out of the pool: {why}")

    def close(self) -> None:
        """Say in the traces that this was all."""
        if self._num_tables and self._ledger is not None:
            self._say_checked()
        for each in self._watchers:
            each.close()


def _words(one: Broken) -> str:
    return f"block {one.block} was of use {one.expected} and is of use {one.serial}"


def _computed(output: Any) -> dict[str, int]:
    """Give how many tokens each request of a step has computed before it."""
    cached = output.scheduled_cached_reqs
    before = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return before | {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}


def _watcher(settings: GuardSettings, facts: Facts, place: Place) -> tuple[Incarnation, Watcher]:
    """Give a life, and the watcher of one of an engine's two places; a trace only where it is that role."""
    life, block = new_incarnation(), min(facts.block_tokens)
    pages = facts.pool_tokens // block
    capacity = Capacity(block, facts.context_tokens, pages, pages)
    engine = Engine(facts.name, place, life, facts.layout, capacity, UNSEEN[place])
    traced = settings.trace if facts.role in (place, "both") else None
    return life, Watcher(engine, enforced=settings.enforces, folder=traced)
