"""One attempt on one pair: when a token may leave, and when a leg may be ended.

- No token of decode leaves before prefill's own answer was read and counts as many prompt tokens as were asked for; nor
  one of an event that does not count them itself. Prefill that counts 1 of 1,024 refused the request without saying so,
  and what decode then reads are pages that nobody wrote for it.
- Prefill's refusal is the client's answer at once, and ends decode's leg: a refused request moves no pages.
- A leg is not ended while pages may be on their way: whoever leaves waits until prefill has answered (both asked at
  once), or until decode has begun (one after the other). What failed without a refusal is left to end by itself.

Not for: which pair, and what becomes of the outcome (``dispatcher.py``).
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Any

import httpx
from msgspec import Struct
from msgspec.structs import replace

from kvfence.engines.dialect import Call, Dialect, Heard, Order, Pair, Said, Spot
from kvfence.engines.door import Ending, Reply, ending_of, ending_of_reply, events, post
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import TokensOut

Leg = asyncio.Task[Ending]
ABORT_TIMEOUT_S = 5.0
GONE = Ending(EndReason.CANCELLED)
BROKE_OFF = Ending(EndReason.TRANSFER_FAILED, elsewhere=True, unsettled=True)
_BROKEN = (EndReason.TRANSFER_FAILED, EndReason.WORKER_LOST)
MISCOUNTED = Ending(EndReason.COUNT_MISMATCH)
OTHER_TOKEN = Ending(EndReason.STAMP_MISMATCH)


class Outcome(Struct, frozen=True):
    """How an attempt ended. ``lost``: workers that were not there. ``rest``: legs whose pages may still be moving."""

    ending: Ending
    lost: tuple[str, ...] = ()
    rest: tuple[asyncio.Task[object], ...] = ()


class Listener:
    """Decode's tokens, held back until prefill's answer was compared.

    ``begun``: a token came, so that the hand-off has settled, or there is nothing more to come.
    """

    def __init__(self, num_prompt: int, tell: Callable[[TokensOut], None]) -> None:
        self.begun = asyncio.Event()
        self.first_token: int | None = None
        self._num_prompt, self._tell = num_prompt, tell
        self._said: Said | None = None
        self._num_cached = 0
        self._held: list[TokensOut] = []

    def take(self, heard: Heard) -> Ending | None:
        """Take one piece of decode's answer. Returns: how it ended, where this was the last."""
        if heard.tokens is not None and heard.tokens.token_ids:
            if heard.num_prompt != self._num_prompt:
                return MISCOUNTED
            ending = self._keep(heard.tokens)
            if ending is not None:
                return ending
        elif heard.num_prompt not in (None, self._num_prompt):
            return MISCOUNTED
        if heard.words is not None:
            return ending_of(heard.words.status, heard.words)
        return None if heard.reason is None else BROKE_OFF if heard.reason in _BROKEN else Ending(heard.reason)

    def _keep(self, tokens: TokensOut) -> Ending | None:
        if self.first_token is None:
            self.first_token = tokens.token_ids[0]
            if self._said is not None and not self.agrees(self._said):
                return OTHER_TOKEN
        self.begun.set()
        self._held.append(tokens)
        if self._said is not None:
            self._let_go()
        return None

    def agrees(self, said: Said) -> bool:
        """Is decode's first token the one that prefill chose, as far as both are known?"""
        return None in (said.first_token, self.first_token) or said.first_token == self.first_token

    def release(self, said: Said) -> None:
        """Let tokens leave: prefill's answer holds."""
        self._said, self._num_cached = said, said.num_cached
        self._let_go()

    def _let_go(self) -> None:
        for tokens in self._held:
            self._tell(replace(tokens, num_cached=self._num_cached) if self._num_cached else tokens)
            self._num_cached = 0
        self._held.clear()


class Handoff:
    """Runs one attempt. ``left``: set when nobody waits for it any more."""

    def __init__(self, http: httpx.AsyncClient, dialect: Dialect, left: asyncio.Event) -> None:
        self._http, self._dialect, self._left = http, dialect, left

    async def run(self, pair: Pair, order: Order, tell: Callable[[TokensOut], None]) -> Outcome:
        """Run it to its end. Cancelling ends both legs, settled or not: that is the deadline's."""
        listener = Listener(len(order.request.token_ids), tell)
        way = self._at_once if self._dialect.at_once else self._in_turn
        return await way(pair, order, listener)

    # ---- both legs at once: decode waits for prefill's pages by itself

    async def _at_once(self, pair: Pair, order: Order, listener: Listener) -> Outcome:
        prefill = asyncio.create_task(self._ask(self._dialect.prefill_call(pair, order)))
        decode = asyncio.create_task(self._listen(pair, order, None, listener))
        rest: tuple[asyncio.Task[object], ...] = ()
        try:
            await asyncio.wait((prefill, decode), return_when=asyncio.FIRST_COMPLETED)
            failed = _failed(decode)
            if not prefill.done() and failed is not None:
                rest = (self._settling(prefill, pair.prefill, order),) if failed.unsettled else ()
                return Outcome(failed, _lost(pair.decode.name, failed), rest)
            said = await prefill
            ending = self._judge(said, order, listener)
            if ending is not None:
                then = self._settling if ending.unsettled else self._ending
                rest = () if decode.done() else (then(decode, pair.decode, order),)
                return Outcome(ending, _lost(pair.prefill.name, ending), rest)
            return await self._follow(decode, pair)
        finally:
            if not rest:
                await self._end((prefill, pair.prefill), (decode, pair.decode), order=order)

    # ---- one after the other: decode fetches the pages that prefill names

    async def _in_turn(self, pair: Pair, order: Order, listener: Listener) -> Outcome:
        prefill = asyncio.create_task(self._ask(self._dialect.prefill_call(pair, order)))
        try:
            if await self._leaves_before(prefill):
                return Outcome(GONE)
            said = prefill.result()
        finally:
            await self._end((prefill, pair.prefill), order=order)
        ending = self._judge(said, order, listener)
        if ending is not None or isinstance(said, Ending):
            return Outcome(ending or BROKE_OFF, _lost(pair.prefill.name, ending or BROKE_OFF))
        decode = asyncio.create_task(self._listen(pair, order, said, listener))
        try:
            await listener.begun.wait()
            return await self._follow(decode, pair)
        finally:
            await self._end((decode, pair.decode), order=order)

    # ---- what both ways share

    def _settling(self, leg: Leg | asyncio.Task[Said | Ending], spot: Spot, order: Order) -> asyncio.Task[None]:
        """Leave a leg alone; whoever cancels the task ends the leg."""

        async def settle() -> None:
            try:
                await asyncio.wait({leg})
            finally:
                await self._end((leg, spot), order=order)

        return asyncio.create_task(settle())

    def _ending(self, leg: Leg | asyncio.Task[Said | Ending], spot: Spot, order: Order) -> asyncio.Task[None]:
        """End a leg beside the answer, which does not wait for it."""
        return asyncio.create_task(self._end((leg, spot), order=order))

    async def _end(self, *legs: tuple[asyncio.Task[Any], Spot], order: Order) -> None:
        """End what is still running: the worker is told first, then its connection is closed."""
        calls = [self._dialect.abort_call(spot, order) for leg, spot in legs if not leg.done()]
        telling = [asyncio.create_task(post(self._http, call)) for call in calls if call is not None]
        if telling:
            await asyncio.wait(telling, timeout=ABORT_TIMEOUT_S)
        await _cancel([*telling, *(leg for leg, _ in legs)])

    def _judge(self, said: Said | Ending, order: Order, listener: Listener) -> Ending | None:
        """Compare prefill's answer with what was asked; where it holds, decode's tokens may leave."""
        if isinstance(said, Ending):
            return said
        if said.reason is not None:
            return ending_of(said.words.status, said.words) if said.words is not None else BROKE_OFF
        if said.num_prompt != len(order.request.token_ids):
            return MISCOUNTED
        if not listener.agrees(said):
            return OTHER_TOKEN
        listener.release(said)
        return None

    async def _follow(self, decode: Leg, pair: Pair) -> Outcome:
        """The hand-off has settled: decode's leg may be ended whenever its reader goes."""
        if await self._leaves_before(decode):
            return Outcome(GONE)
        ending = decode.result()
        return Outcome(ending, _lost(pair.decode.name, ending))

    async def _leaves_before(self, task: asyncio.Task[Ending] | asyncio.Task[Said | Ending]) -> bool:
        leaving = asyncio.create_task(self._left.wait())
        try:
            await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel([leaving])
        return not task.done()

    async def _ask(self, call: Call) -> Said | Ending:
        reply = await post(self._http, call)
        return self._dialect.read_prefill(reply.body) if reply.status == 200 else ending_of_reply(reply)

    async def _listen(self, pair: Pair, order: Order, said: Said | None, listener: Listener) -> Ending:
        call, read = self._dialect.decode_call(pair, order, said), self._dialect.reader(order)
        try:
            async with aclosing(events(self._http, call)) as stream:
                async for data in stream:
                    ending = ending_of_reply(data) if isinstance(data, Reply) else listener.take(read(data))
                    if ending is not None:
                        return ending
            return BROKE_OFF
        finally:
            listener.begun.set()


def _failed(decode: Leg) -> Ending | None:
    """Give how decode's leg ended, where it ended without a whole answer."""
    if not decode.done():
        return None
    ending = decode.result()
    return None if ending.reason in (EndReason.STOP, EndReason.LENGTH) else ending


def _lost(name: str, ending: Ending) -> tuple[str, ...]:
    return (name,) if ending.lost else ()


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel what is still running and wait until its connection is closed."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
