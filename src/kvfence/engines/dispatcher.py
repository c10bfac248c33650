"""Generations on pairs of another engine: admits, places, hands over, and asks elsewhere where nothing has left yet.

Implements ``runtime.generation.Generations``, so that the gateway before it is the same as before our own workers. Not
for: one attempt (``handoff.py``) or the workers (``fleet.py``).
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import httpx
from msgspec import Struct

from kvfence.core.ids import RequestId, TenantId
from kvfence.core.limits import Limits
from kvfence.core.request import Request, without_content
from kvfence.engines.dialect import Dialect, Order, Pair
from kvfence.engines.door import Ending
from kvfence.engines.fleet import Fleet
from kvfence.engines.handoff import Handoff, Outcome
from kvfence.protocol.admission import Capacity, Load, Refuse, decide
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, Generations, TokensOut, WorkerState
from kvfence.runtime.salts import Salter
from kvfence.runtime.stages import Journeys

ATTEMPTS_MAX = 3
"""Pairs that one request is offered to."""

ROOM_BITS = 62
GIVEN_UP = Ending(EndReason.WORKER_LOST, elsewhere=True)
"""Of an attempt with a worker that says nothing any more: whoever waits is told, and its legs are left to settle."""

Item = TokensOut | EndOut | Exception


class _Open(Struct):
    """One request until its hand-off has settled and its end is known, also when nobody waits for it any more."""

    request: Request
    queue: "asyncio.Queue[tuple[int, Item]]"
    index: int
    left: asyncio.Event
    num_told: int = 0
    over: bool = False
    legs: list[asyncio.Event] = []

    __repr__ = without_content

    def leave(self) -> None:
        """Nobody waits any more."""
        for event in (self.left, *self.legs):
            event.set()

    def leg(self) -> asyncio.Event:
        """Begin an attempt. Returns: set when nobody waits for it any more."""
        event = asyncio.Event()
        self.legs.append(event)
        if self.left.is_set():
            event.set()
        return event

    def tell(self, item: Item) -> None:
        """Pass something on to whoever reads."""
        if not self.over:
            self.num_told += len(item.token_ids) if isinstance(item, TokensOut) else 0
            self.over = not isinstance(item, TokensOut)
            self.queue.put_nowait((self.index, item))


class EngineDispatcher(Generations):
    """Dispatches generations to pairs. ``handoffs``: what runs an attempt. Owner: one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        dialect: Dialect,
        http: httpx.AsyncClient,
        limits: Limits,
        handoffs: type[Handoff] = Handoff,
    ) -> None:
        self.fleet = fleet
        self.journeys = Journeys()
        self.decisions: Counter[tuple[str, str, str]] = Counter()
        self.outcomes: Counter[str] = Counter()
        self._dialect, self._http, self._limits, self._handoffs = dialect, http, limits, handoffs
        self._salter = Salter()
        self._open: dict[RequestId, _Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._rests: dict[asyncio.Task[object], TenantId] = {}
        self._draining = False

    # ---- what the gateway asks

    @property
    def capacity(self) -> Capacity:
        """Context and the smallest pool of each role, as measured."""
        return self.fleet.capacity

    @property
    def draining(self) -> bool:
        """Is no request admitted any more?"""
        return self._draining

    def workers(self) -> tuple[WorkerState, ...]:
        """Every worker, ready or not."""
        return self.fleet.states()

    async def generate_together(
        self, requests: Sequence[Request]
    ) -> AsyncGenerator[tuple[int, TokensOut | EndOut], None]:
        """Admit all or none, then yield what comes for any; see ``Generations.generate_together``."""
        refusal = self._admit(requests)
        if refusal is not None:
            yield 0, refusal
            return
        queue: asyncio.Queue[tuple[int, Item]] = asyncio.Queue()
        mine = [_Open(request, queue, index, asyncio.Event()) for index, request in enumerate(requests)]
        try:
            for each in mine:
                self._begin(each)
            num_open = len(mine)
            while num_open:
                index, item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                num_open -= isinstance(item, EndOut)
                yield index, item
        finally:
            for each in mine:
                each.over = True
                each.leave()

    def leave(self, request: RequestId) -> None:
        """Cancel one of several; see ``Generations.leave``."""
        opened = self._open.get(request)
        if opened is not None:
            opened.tell(EndOut(EndReason.CANCELLED))
            opened.leave()

    # ---- admission

    def _admit(self, requests: Sequence[Request]) -> EndOut | None:
        """Refuse what no pair can take, in the limits that the engines were found to have, and what is too much now."""
        if self._draining:
            return EndOut(EndReason.SHUTDOWN)
        first, num_more = requests[0], len(requests) - 1
        sums = self.fleet.sums(len(first.token_ids), first.max_tokens)
        holds = all(fit.holds for fit in sums)
        self._decide("fits", holds)
        if not holds:
            return EndOut(EndReason.DOES_NOT_FIT, sums)
        open_now = [each.request.tenant for each in self._open.values()] + list(self._rests.values())
        ready = self.fleet.place(first) is not None
        load = Load(len(open_now) + num_more, open_now.count(first.tenant) + num_more, ready)
        answer = decide(self._limits, load)
        return EndOut(answer.reason, (), answer.retry_after_s) if isinstance(answer, Refuse) else None

    def _decide(self, guard: str, holds: bool) -> None:
        self.decisions[guard, "gateway", "pass" if holds else "refuse"] += 1

    # ---- attempts

    def _begin(self, opened: _Open) -> None:
        self._open[opened.request.id] = opened
        self.journeys.mark(opened.request.id, "admitted")
        task = asyncio.create_task(self._drive(opened))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drive(self, opened: _Open) -> None:
        """See one request to its end; whatever breaks here is told to whoever waits for it."""
        request = opened.request
        ends_at = asyncio.get_running_loop().time() + request.deadline_s
        item: Item = EndOut(EndReason.SHUTDOWN)
        try:
            async with asyncio.timeout_at(ends_at):
                item = await self._try_pairs(opened, ends_at)
        except TimeoutError:
            item = EndOut(EndReason.DEADLINE)
        except Exception as error:  # noqa: BLE001 - nobody else awaits this task
            item = error
        finally:
            del self._open[request.id]
            if isinstance(item, EndOut):
                self.journeys.end(request.id, item.reason.value)
            opened.tell(item)

    async def _try_pairs(self, opened: _Open, ends_at: float) -> EndOut:
        tried: list[Pair] = []
        end = EndOut(EndReason.NO_WORKER, (), 5)
        while len(tried) < ATTEMPTS_MAX and not opened.left.is_set():
            pair = self.fleet.place(opened.request, tried)
            if pair is None:
                break
            tried.append(pair)
            outcome = await self._attempt(opened, pair)
            for leg in outcome.rest:
                self._let_settle(leg, opened.request.tenant, ends_at)
            end = EndOut(outcome.ending.reason, (), 0, outcome.ending.words)
            if not outcome.ending.elsewhere or opened.num_told:
                break
        return end

    async def _attempt(self, opened: _Open, pair: Pair) -> Outcome:
        request = opened.request
        order = Order(request, self._salter.salt(request), secrets.randbits(ROOM_BITS))
        self.journeys.place(request.id, pair.prefill.name, pair.decode.name)
        for mark in ("offered", "dispatched"):
            self.journeys.mark(request.id, mark)

        waited_for, left = True, opened.leg()

        def tell(tokens: TokensOut) -> None:
            if waited_for:
                self.journeys.mark(request.id, "first_token")
                opened.tell(tokens)

        with self.fleet.holding(pair, request) as given_up:
            running = asyncio.create_task(self._handoffs(self._http, self._dialect, left).run(pair, order, tell))
            giving_up = asyncio.create_task(given_up.wait())
            try:
                await asyncio.wait((running, giving_up), return_when=asyncio.FIRST_COMPLETED)
                waited_for = running.done()
                outcome = running.result() if waited_for else Outcome(GIVEN_UP, (), (running,))
            finally:
                left.set()
                ended: list[asyncio.Task[Any]] = [giving_up, running] if waited_for else [giving_up]
                for task in ended:
                    task.cancel()
                await asyncio.gather(*ended, return_exceptions=True)
        self._note(pair, outcome)
        return outcome

    def _note(self, pair: Pair, outcome: Outcome) -> None:
        """Count how it ended, and give nothing more to workers that were not there."""
        ending: Ending = outcome.ending
        self.outcomes[ending.reason.value] += 1
        self._decide("count-matches", ending.reason is not EndReason.COUNT_MISMATCH)
        for spot in (pair.prefill, pair.decode):
            self.fleet.note(spot.name, ending.reason.value)
        for name in outcome.lost:
            self.fleet.note_lost(name)

    def _let_settle(self, leg: asyncio.Task[object], tenant: TenantId, ends_at: float) -> None:
        """Leave a leg alone until it ends or the request's deadline has come; meanwhile it counts as open."""

        async def settle() -> None:
            try:
                await asyncio.wait({leg}, timeout=max(0.0, ends_at - asyncio.get_running_loop().time()))
            finally:
                leg.cancel()
                (outcome,) = await asyncio.gather(leg, return_exceptions=True)
                self._rests.pop(leg, None)
                for rest in outcome.rest if isinstance(outcome, Outcome) else ():
                    self._let_settle(rest, tenant, ends_at)

        self._rests[leg] = tenant
        task = asyncio.create_task(settle())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- the end

    async def drain(self, timeout_s: float) -> None:
        """Admit no more; wait until every open request has ended and settled, at most so long; then end the rest."""
        self._draining = True
        try:
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            pass
        finally:
            await self._end_all()

    async def close(self) -> None:
        """End what is open, stop looking at workers, and close every connection."""
        self._draining = True
        await self._end_all()
        await self.fleet.close()
        await self._http.aclose()

    async def _end_all(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class EngineNumbers:
    """What metrics show of an engine's pairs; implements ``gateway.metrics.GaugeSource``."""

    def __init__(self, dispatcher: EngineDispatcher) -> None:
        self._dispatcher = dispatcher

    def pool_pages(self) -> Mapping[tuple[str, str, str], int]:
        """Nothing: the engines' own metrics have it."""
        return {}

    def handoffs(self) -> Mapping[str, int]:
        """Outcome -> hand-offs since the start."""
        return self._dispatcher.outcomes

    def guard_decisions(self) -> Mapping[tuple[str, str, str], int]:
        """(guard, place, answer) -> times asked since the start."""
        return self._dispatcher.decisions

    def worker_events(self) -> Mapping[tuple[str, str, str], int]:
        """(role, worker, how an attempt there ended) -> times since the start."""
        return self._dispatcher.fleet.counts

    def prefixes(self) -> Mapping[tuple[str, str], int]:
        """Nothing: as above."""
        return {}
