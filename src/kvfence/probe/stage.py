"""What phases stand on: drafting canaries, sending them within the budget, and the record that grows.

Not for: which canaries (``phases/``), the order of phases (``run.py``).
"""

import asyncio
import math
import random
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from kvfence.probe.budget import Budget, Deadline, Tally
from kvfence.probe.client import Client, Heard, Patience
from kvfence.probe.door import Api
from kvfence.probe.exchange import Ask, Calibration, Cut, Exchange, Phase, Trouble
from kvfence.probe.markers import Markers
from kvfence.probe.pacing import Overloaded, Pacer, TooLate
from kvfence.probe.plan import Plan
from kvfence.probe.texts import LINES, ONWARD, REPETITIVE, Draft, Ruler, Wish, renumbered

PATIENCE_S = 330.0
"""Engines give a hand-off that never comes 300 seconds."""

HURRIED_S = 5.0
"""Once a prompt has been waited for in vain, one as long is given so much and four times its due."""

IN_VAIN = (Trouble.REFUSED, Trouble.BROKEN, Trouble.UNREACHABLE)
"""How a wait without a first token ends."""

DEAD_AFTER = 6
"""So many answers of no kind, one after the other, and the server counts as dead."""


class Ended(Exception):
    """The run ends here with what it has."""

    def __init__(self, cut: Cut, why: str) -> None:
        super().__init__(why)
        self.cut, self.why = cut, why


class Canary(Struct, frozen=True, kw_only=True):
    """What a phase wants to ask. ``number``: which of the tenant's markers. Units: num_tokens of the prompt."""

    tenant: str
    phase: Phase
    role: str
    num_tokens: int
    max_tokens: int
    group: str = ""
    kind: str = REPETITIVE
    number: int = 0
    tail: str = ""
    leave: int | None = None
    logprobs: bool = False
    stream: bool = True
    nonce: int | None = None
    shape: tuple[int, int] | None = None
    patience: Patience = Patience(PATIENCE_S)


class Stage:
    """One run in progress."""

    def __init__(self, client: Client, budget: Budget, markers: Markers, seed: int) -> None:
        self.client, self.budget, self.markers, self.seed = client, budget, markers, seed
        self.tenants = client.door.tenants
        self.rng = random.Random(f"run/{seed}")
        self.ruler = Ruler()
        self.tally = Tally()
        self.deadline = Deadline.after(budget.minutes_max)
        ends_s = math.inf if self.deadline.ends_s is None else self.deadline.ends_s
        self.pacer = Pacer(budget.concurrency, max(4, budget.requests_max // 20), ends_s)
        self.calibration = Calibration()
        self.exchanges: list[Exchange] = []
        self.alarms = 0
        self.lost_tokens: int | None = None
        self.hung_tokens: int | None = None
        self.plan: Plan | None = None
        self.phase = Phase.CALIBRATE
        self.phase_ends_s: float | None = None
        self.changed: Callable[[], None] = lambda: None
        self._numbers = 0
        self._silent = 0
        self._nonces = iter(self.rng.sample(range(1_000_000), 1_000_000 // 8))

    def fresh_nonce(self) -> int:
        """Give a number that no prompt of this run has begun with."""
        return next(self._nonces, 0)

    def lines_kind(self, number: int) -> str:
        """Give the kind of a prompt of lines: by turns read from its beginning and from its end."""
        return ONWARD if self.client.api is Api.COMPLETIONS and number % 2 else REPETITIVE

    def others(self, tenant: str) -> tuple[str, ...]:
        """Give the other tenants."""
        return tuple(each for each in self.tenants if each != tenant)

    @property
    def requests_left(self) -> int:
        """Give how many requests this phase may still send."""
        share = self.plan.of(self.phase).requests if self.plan else self.budget.requests_max
        used = self.tally.requests.get(self.phase, 0)
        return max(0, min(share - used, self.budget.requests_max - self.tally.total))

    def has_room(self, requests: int, tokens: int = 0) -> bool:
        """Is there so much left of this phase's share, of the run's budget and of time?"""
        share = self.plan.of(self.phase) if self.plan else None
        used = self.tally.requests.get(self.phase, 0)
        if requests > self.requests_left:
            return False
        if share is not None and used and self.tally.tokens.get(self.phase, 0) + tokens > share.tokens * 1.2:
            return False
        spent = self.tally.tokens_in + self.tally.tokens_out + self.tally.reserved
        return spent + tokens <= self.budget.tokens_by_cost and (
            self.phase_ends_s is None or self.client.now_s < self.phase_ends_s or not used
        )

    def draft(self, canary: Canary) -> tuple[Ask, Draft]:
        """Write the prompt of a canary."""
        marker = self.markers.of(canary.tenant, canary.number)
        own = (marker,) if canary.kind in LINES else self.markers.planted[canary.tenant]
        own = () if canary.kind == "plain" else own
        nonce = self.fresh_nonce() if canary.nonce is None else canary.nonce
        draft = self.ruler.draft(Wish(canary.kind, own, canary.num_tokens, nonce, canary.tail, canary.shape))
        self._numbers += 1
        ask = Ask(
            number=self._numbers,
            tenant=canary.tenant,
            phase=canary.phase,
            prompt=draft.prompt,
            max_tokens=canary.max_tokens,
            num_tokens=draft.expected if draft.measured and self.calibration.has_usage else None,
            group=canary.group,
            role=canary.role,
            own=tuple(each for each in own if each in draft.prompt),
            echo=own if canary.kind in LINES else (),
            seed=self.seed & 0x7FFF_FFFF,
            stream=canary.stream,
            logprobs=canary.logprobs,
            leave=canary.leave,
        )
        return ask, draft

    def draft_stale(self, canary: Canary, text: str, marker: str) -> tuple[Ask, Draft]:
        """Take a text as it is; ``marker``: what its answer is to show."""
        self._numbers += 1
        draft = Draft("stale", f"stale/{self._numbers}", text, 1, 0, canary.num_tokens, False)
        ask = Ask(
            number=self._numbers,
            tenant=canary.tenant,
            phase=canary.phase,
            prompt=text,
            max_tokens=canary.max_tokens,
            group=canary.group,
            role=canary.role,
            own=tuple(each for each in self.markers.planted[canary.tenant] if each in text),
            echo=(marker,),
            seed=self.seed & 0x7FFF_FFFF,
        )
        return ask, draft

    def below_hung(self, num_tokens: int) -> int:
        """Cut a length that may be waited for in vain to half of the shortest that was."""
        hung = self.hung_tokens
        return num_tokens if hung is None or num_tokens < hung else hung // 2

    async def send(self, canary: Canary) -> Exchange:
        """Send one canary; once more where the server was too busy and a second try is left.

        Raises:
            Ended: a budget is spent, the server is overloaded or dead.
        """
        ask, draft = self.draft(canary)
        return await self.send_drafted(ask, draft, canary.patience)

    async def send_again(self, ask: Ask, draft: Draft, patience: Patience = Patience(PATIENCE_S)) -> Exchange:
        """Send a prompt that was drafted before, to the letter, as a request of its own."""
        self._numbers += 1
        return await self.send_drafted(replace(ask, number=self._numbers), draft, patience)

    async def send_twin(self, ask: Ask, draft: Draft) -> Exchange:
        """Send a prompt that was drafted before with another number at its beginning, so that no cache knows it."""
        self._numbers += 1
        prompt = renumbered(ask.prompt, self.fresh_nonce())
        return await self.send_drafted(replace(ask, number=self._numbers, prompt=prompt), draft)

    async def send_drafted(self, ask: Ask, draft: Draft, patience: Patience = Patience(PATIENCE_S)) -> Exchange:
        """Send what was drafted; once more where the server was too busy and a second try is left."""
        exchange = await self._ask(ask, draft, patience)
        if exchange.trouble is Trouble.LIMITED and ask.phase is not Phase.PRESSURE and self.pacer.may_retry():
            exchange = await self._ask(ask, draft, patience)
        return exchange

    async def send_all(self, canaries: Sequence[Canary]) -> list[Exchange]:
        """Send canaries together; their exchanges stand in the same order."""
        return [heard for (heard,) in await self.send_in_turn([(canary,) for canary in canaries])]

    async def send_in_turn(self, rows: Sequence[Sequence[Canary]]) -> list[list[Exchange]]:
        """Send rows of canaries together, each row's one after the other, at once; exchanges stand alike."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._in_turn(row)) for row in rows]
        except* Ended as ends:
            raise _first(ends) from None
        return [task.result() for task in tasks]

    async def _in_turn(self, canaries: Sequence[Canary]) -> list[Exchange]:
        return [await self.send(canary) for canary in canaries]

    async def send_beside(self, ask: Ask, draft: Draft, load: Sequence[Canary]) -> None:
        """Send what was drafted before while others are under way."""
        try:
            async with asyncio.TaskGroup() as group:
                for canary in load:
                    group.create_task(self.send(canary))
                group.create_task(self.send_again(ask, draft))
        except* Ended as ends:
            raise _first(ends) from None

    async def _ask(self, ask: Ask, draft: Draft, patience: Patience) -> Exchange:
        tokens = draft.expected + ask.max_tokens
        try:
            async with self.pacer.slot() as turn:
                self._check(tokens)
                self.tally.reserved += tokens
                try:
                    heard = await self.client.ask(ask, self._within(patience))
                finally:
                    self.tally.reserved -= tokens
                if heard.exchange.trouble is Trouble.LIMITED:
                    self.pacer.limited(heard.exchange.retry_after_s, turn)
        except Overloaded:
            raise Ended(Cut.OVERLOAD, "the server asks to come back later, again and again") from None
        except TooLate:
            raise Ended(Cut.BUDGET, "the time is over, in a pause that the server asked for") from None
        self._note(heard, draft, patience.total_s)
        return heard.exchange

    def _check(self, tokens: int) -> None:
        spent = self.tally.tokens_in + self.tally.tokens_out + self.tally.reserved
        if self.tally.total >= self.budget.requests_max or spent + tokens > self.budget.tokens_by_cost:
            raise Ended(Cut.BUDGET, "the budget is spent")
        if self.deadline.left_s == 0.0:
            raise Ended(Cut.BUDGET, "the time is over")

    def _within(self, patience: Patience) -> Patience:
        """Leave when the run's time is over: an answer that is cut off then is no fault of the server."""
        left = self.deadline.left_s
        leave_s = patience.total_s if patience.leave_s is None else patience.leave_s
        return patience if left is None or leave_s <= max(1.0, left) else replace(patience, leave_s=max(1.0, left))

    def _holds_foreign(self, exchange: Exchange) -> bool:
        """Does the answer hold another tenant's marker? For the live count: the verdict looks closer."""
        said = " ".join(f"{exchange.text} {exchange.aside} {exchange.headers}".split())
        asker = exchange.ask.tenant
        return any(marker in said for tenant in self.others(asker) for marker in self.markers.planted[tenant])

    def _note(self, heard: Heard, draft: Draft, patience_s: float) -> None:
        exchange = heard.exchange
        self.exchanges.append(exchange)
        self.tally.heard(exchange, draft.expected, self.phase)
        if exchange.status == 200:
            self.pacer.answered()
        num_tokens = exchange.prompt_tokens or heard.counted
        if num_tokens:
            self.ruler.learn(draft, num_tokens)
        took_s = exchange.ended_s - exchange.sent_s
        lost = exchange.trouble is Trouble.UNREACHABLE and took_s < 0.9 * patience_s
        if took_s >= HURRIED_S and exchange.first_s is None and exchange.trouble in IN_VAIN:
            self.hung_tokens = min(draft.expected, self.hung_tokens or draft.expected)
        elif exchange.is_answer and draft.expected >= (self.hung_tokens or 0):
            self.hung_tokens = None
        self._silent = self._silent + 1 if lost else 0
        self.alarms += self._holds_foreign(exchange)
        self.changed()
        if self._silent >= DEAD_AFTER:
            raise Ended(Cut.GONE, f"the server answers no more ({exchange.message or 'no connection'})")


def is_refused(exchange: Exchange) -> bool:
    """Was the prompt not answered: refused by status, in a stream's first event, or never?"""
    return exchange.trouble is not None and exchange.trouble is not Trouble.LEFT and not exchange.text


def is_unanswered(exchange: Exchange) -> bool:
    """Was the prompt waited for in vain?"""
    waited_s = exchange.ended_s - exchange.sent_s
    return exchange.trouble is Trouble.UNREACHABLE and exchange.first_s is None and waited_s >= HURRIED_S


def echoes(exchange: Exchange) -> bool:
    """Does the answer repeat a marker that it was asked to, or most of one?"""
    said = " ".join((exchange.text + " " + exchange.aside).lower().split())
    return any(sum(word in said for word in marker.split()) >= 2 for marker in exchange.ask.echo)


def _first(ends: BaseExceptionGroup[Ended]) -> Ended:
    found: BaseException = ends
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found if isinstance(found, Ended) else Ended(Cut.GONE, str(found))
