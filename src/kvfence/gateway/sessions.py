"""The choices of one answer on their way to one client: tokens in, pieces out, stop strings never shown.

A session owns its generation: whoever leaves the session closes the generation, which cancels it upstream.
Not for: how pieces are worded (``answers.py``) or sent (``streams.py``).
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from kvfence.core.ids import RequestId
from kvfence.core.request import Request
from kvfence.gateway.pieces import CallPart, Finish, Piece, SaidToken
from kvfence.gateway.responses import BROKEN_OFF, Failure, Need, failure_in_words, failure_of, finish_reason, too_large
from kvfence.gateway.tool_calls import CallReader, overlap
from kvfence.gateway.translate import TextStream
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, TokensOut


class Times(Protocol):
    """Hears of each token's time. Implemented by ``metrics.py``."""

    def first_token(self, elapsed_s: float) -> None:
        """Note how long the first token took."""
        ...

    def inter_token(self, elapsed_s: float) -> None:
        """Note the time since the token before."""
        ...


class StopScanner:
    """Finds stop strings in text that comes in pieces, however they are cut.

    What could still become a stop string is held back. The stop string that ends first wins.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text. Returns: what may be shown, and whether a stop string ended the answer."""
        seen = self._held + text
        ends = [(at + len(stop), at) for stop in self._stops if (at := seen.find(stop)) >= 0]
        if ends:
            self._held = ""
            return seen[: min(ends)[1]], True
        keep = max((overlap(seen, stop) for stop in self._stops), default=0)
        self._held = seen[len(seen) - keep :]
        return seen[: len(seen) - keep], False

    def flush(self) -> str:
        """Give what was held back: no stop string can come any more."""
        held, self._held = self._held, ""
        return held


class TokenClock:
    """Times of one answer's tokens, those of all its choices.

    Units:
        started_s: when the request arrived, on this clock; ttft_s from then, None before the first token.
        num_cached: tokens of the prompt that were not computed again, for the choice of which most were not.
    """

    def __init__(self, times: Times, started_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_tokens = 0
        self.num_cached = 0
        self.ttft_s: float | None = None
        self._times = times
        self._clock = clock
        self._started_s = started_s
        self._last_s: dict[int, float] = {}

    def note(self, num_tokens: int, index: int = 0) -> None:
        """So many tokens of a choice came just now."""
        if num_tokens == 0:
            return
        now_s = self._clock()
        if self.num_tokens == 0:
            self.ttft_s = now_s - self._started_s
            self._times.first_token(self.ttft_s)
        elif index in self._last_s:
            self._times.inter_token((now_s - self._last_s[index]) / num_tokens)
        self._last_s[index] = now_s
        self.num_tokens += num_tokens


class Reading(Struct, frozen=True):
    """How tokens become text. ``calls``: makes the reader of calls, where calls may stand in the answer."""

    text: Callable[[], TextStream]
    token_bytes: Callable[[int], bytes] = lambda _: b""
    calls: Callable[[], CallReader] | None = None


class Choice:
    """One choice: what came of it, and what of that is held back."""

    def __init__(self, index: int, request: Request, reading: Reading) -> None:
        self.request = request
        self.over = False
        self._index = index
        self._text = reading.text()
        self._token_bytes = reading.token_bytes
        self._calls = reading.calls() if reading.calls is not None else None
        self._stops = StopScanner(request.stop)
        self._num_tokens = 0
        self._offset = 0

    def push(self, event: TokensOut) -> list[Piece | Finish]:
        """Take tokens; give a piece, and the finish where a stop string ends the answer."""
        ids = [each for each in event.token_ids if each not in self.request.sampling.stop_token_ids]
        text = self._text.push(ids)
        self._num_tokens += len(event.token_ids)
        if self._num_tokens > self.request.sampling.min_tokens:
            text, stopped = self._stops.push(text)
        else:
            stopped = False
        said = self._said(event)
        if not stopped:
            return [self._piece(self._read(text), said)]
        self.over = True
        return [self._piece([*self._read(text), *self._last_parts()], said), Finish(self._reason("stop"), self._index)]

    def end(self, reason: str) -> list[Piece | Finish]:
        """Show what was held back: only after a full answer."""
        shown, stopped = self._stops.push(self._text.flush())
        rest = shown if stopped else shown + self._stops.flush()
        self.over = True
        parts = [*self._read(rest), *self._last_parts()]
        return [self._piece(parts, ()), Finish(self._reason("stop" if stopped else reason), self._index)]

    def _reason(self, reason: str) -> str:
        return self._calls.reason if self._calls is not None and reason == "stop" else reason

    def _read(self, text: str) -> list[str | CallPart]:
        return [text] if self._calls is None else self._calls.push(text)

    def _last_parts(self) -> list[str | CallPart]:
        return [] if self._calls is None else self._calls.flush()

    def _piece(self, parts: list[str | CallPart], said: tuple[SaidToken, ...]) -> Piece:
        text = "".join(part for part in parts if isinstance(part, str))
        calls = tuple(part for part in parts if isinstance(part, CallPart))
        return Piece(text, self._index, said, calls)

    def _said(self, event: TokensOut) -> tuple[SaidToken, ...]:
        """Name tokens and their likeliest alternatives by their bytes."""
        said = []
        for token_id, logprob in zip(event.token_ids, event.logprobs, strict=False):
            text = self._token_bytes(token_id)
            top = tuple((self._token_bytes(other), value) for other, value in logprob.top)
            said.append(SaidToken(text, logprob.logprob, top, self._offset))
            self._offset += len(text.decode("utf-8", "replace"))
        return tuple(said)


Events = AsyncIterator[tuple[int, TokensOut | EndOut]]


class Session:
    """The choices of one request, read once. ``leave``: cancels one of them upstream."""

    def __init__(
        self, choices: Sequence[Choice], events: Events, clock: TokenClock, leave: Callable[[RequestId], None]
    ) -> None:
        self.request = choices[0].request
        self.clock = clock
        self._choices = choices
        self._events = events
        self._leave = leave

    @property
    def num_choices(self) -> int:
        """How many answers there are."""
        return len(self._choices)

    async def read(self, page_size: int) -> AsyncGenerator[Piece | Finish | Failure, None]:
        """Yield pieces and one Finish for each choice, or one Failure at last, which ends all of them.

        Closing it, early or not, closes the generation.
        """
        try:
            async for index, event in self._events:
                choice = self._choices[index]
                if choice.over:
                    continue
                items = self._take(choice, index, event, page_size)
                for item in items:
                    yield item
                    if isinstance(item, Failure):
                        return
                if all(each.over for each in self._choices):
                    return
                if isinstance(items[-1], Finish):
                    self._leave(choice.request.id)
            yield BROKEN_OFF
        finally:
            if isinstance(self._events, AsyncGenerator):
                await self._events.aclose()

    def _take(
        self, choice: Choice, index: int, event: TokensOut | EndOut, page_size: int
    ) -> Sequence[Piece | Finish | Failure]:
        if isinstance(event, TokensOut):
            self.clock.note(len(event.token_ids), index)
            self.clock.num_cached = max(self.clock.num_cached, event.num_cached)
            return choice.push(event)
        word = finish_reason(event.reason)
        return [self._failure(event, page_size)] if word is None else choice.end(word)

    def _failure(self, end: EndOut, page_size: int) -> Failure:
        if end.reason is EndReason.DOES_NOT_FIT and end.sums:
            need = Need(len(self.request.token_ids), self.request.max_tokens, end.sums)
            return too_large(need, page_size)
        if end.words is not None:
            return failure_in_words(end.reason, end.words)
        return failure_of(end.reason, end.retry_after_s)
