"""One answer on its way to one client: tokens in, whole characters out, stop strings never shown.

A session owns its generation: whoever leaves the session closes the generation, which cancels it upstream.
Not for: how text is worded (``openai.py``) or sent (``streams.py``).
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Protocol

from msgspec import Struct

from kvfence.core.request import Request
from kvfence.gateway.responses import BROKEN_OFF, Failure, Need, failure_of, finish_reason, too_large
from kvfence.gateway.translate import TextStream
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, TokensOut


class Piece(Struct, frozen=True):
    """Text that may be shown now; empty where tokens came but no whole character."""

    text: str


class Finish(Struct, frozen=True):
    """The answer is complete. ``reason`` is OpenAI's finish_reason."""

    reason: str


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
        keep = max((_overlap(seen, stop) for stop in self._stops), default=0)
        self._held = seen[len(seen) - keep :]
        return seen[: len(seen) - keep], False

    def flush(self) -> str:
        """Give what was held back: no stop string can come any more."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that begins the stop string."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


class TokenClock:
    """Times of one answer's tokens.

    Units:
        started_s: when the request arrived, on this clock; ttft_s from then, None before the first token.
    """

    def __init__(self, times: Times, started_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_tokens = 0
        self.ttft_s: float | None = None
        self._times = times
        self._clock = clock
        self._last_s = started_s

    def note(self, num_tokens: int) -> None:
        """So many tokens came just now."""
        if num_tokens == 0:
            return
        now_s = self._clock()
        elapsed_s, self._last_s = now_s - self._last_s, now_s
        if self.num_tokens == 0:
            self.ttft_s = elapsed_s
            self._times.first_token(elapsed_s)
        else:
            self._times.inter_token(elapsed_s / num_tokens)
        self.num_tokens += num_tokens


class Session:
    """One generation and its text, read once."""

    def __init__(
        self, request: Request, events: AsyncIterator[TokensOut | EndOut], text: TextStream, clock: TokenClock
    ) -> None:
        self.request = request
        self.clock = clock
        self._events = events
        self._text = text
        self._stops = StopScanner(request.stop)

    async def read(self, page_size: int) -> AsyncGenerator[Piece | Finish | Failure, None]:
        """Yield pieces, then exactly one Finish or Failure. Closing it, early or not, closes the generation."""
        try:
            async for event in self._events:
                if isinstance(event, EndOut):
                    for last in self._end(event, page_size):
                        yield last
                    return
                self.clock.note(len(event.token_ids))
                shown, stopped = self._stops.push(self._text.push(event.token_ids))
                yield Piece(shown)
                if stopped:
                    yield Finish("stop")
                    return
            yield BROKEN_OFF
        finally:
            if isinstance(self._events, AsyncGenerator):
                await self._events.aclose()

    def _end(self, end: EndOut, page_size: int) -> list[Piece | Finish | Failure]:
        """Show what was held back only after a full answer."""
        word = finish_reason(end.reason)
        if word is None:
            return [self._failure(end, page_size)]
        shown, stopped = self._stops.push(self._text.flush())
        rest = shown if stopped else shown + self._stops.flush()
        return [Piece(rest), Finish("stop" if stopped else word)]

    def _failure(self, end: EndOut, page_size: int) -> Failure:
        if end.reason is EndReason.DOES_NOT_FIT and end.sums:
            need = Need(len(self.request.token_ids), self.request.max_tokens, end.sums)
            return too_large(need, page_size)
        return failure_of(end.reason, end.retry_after_s)
