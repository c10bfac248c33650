"""What a run may spend, what it has spent, and what that costs."""

import time

from msgspec import Struct

from kvfence.probe.exchange import Exchange, Phase

REQUESTS = 400
TOKENS = 20_000_000
CONCURRENCY = 16


class Budget(Struct, frozen=True, kw_only=True):
    """Bounds of a run; the plan fills them and never passes them. Prices are per million tokens, None: not known."""

    requests_max: int = REQUESTS
    tokens_max: int = TOKENS
    minutes_max: float | None = None
    concurrency: int = CONCURRENCY
    cost_max: float | None = None
    price_in: float | None = None
    price_out: float | None = None

    def cost(self, tokens_in: int, tokens_out: int) -> float | None:
        """Give what tokens cost; None where no price was given."""
        if self.price_in is None and self.price_out is None:
            return None
        return (tokens_in * (self.price_in or 0.0) + tokens_out * (self.price_out or 0.0)) / 1e6

    @property
    def tokens_by_cost(self) -> int:
        """Give the tokens that the money buys where all of them have the dearer price; the bound itself without one."""
        dearest = max(self.price_in or 0.0, self.price_out or 0.0)
        if self.cost_max is None or not dearest:
            return self.tokens_max
        return min(self.tokens_max, int(self.cost_max / dearest * 1e6))


class Tally(Struct):
    """What was sent and heard until now, by phase. ``reserved``: tokens of requests that are open."""

    requests: dict[Phase, int] = {}
    tokens_in: int = 0
    tokens_out: int = 0
    tokens: dict[Phase, int] = {}
    reserved: int = 0
    troubles: dict[str, int] = {}

    @property
    def total(self) -> int:
        """Give all requests."""
        return sum(self.requests.values())

    def sent(self, phase: Phase) -> None:
        """Count one request."""
        self.requests[phase] = self.requests.get(phase, 0) + 1

    def heard(self, exchange: Exchange, expected_in: int, phase: Phase) -> None:
        """Count what an exchange took: by usage, else as expected. A refused prompt costs nothing, but is counted."""
        tokens_in = exchange.prompt_tokens if exchange.prompt_tokens is not None else expected_in
        tokens_out = exchange.completion_tokens if exchange.completion_tokens is not None else exchange.num_pieces
        self.tokens_in += tokens_in
        self.tokens_out += tokens_out
        self.tokens[phase] = self.tokens.get(phase, 0) + tokens_in + tokens_out
        if exchange.trouble is not None:
            self.troubles[exchange.trouble] = self.troubles.get(exchange.trouble, 0) + 1


class Deadline(Struct, frozen=True):
    """When the run's time is over; ``ends_s`` on the monotonic clock, None: never."""

    ends_s: float | None

    @classmethod
    def after(cls, minutes: float | None) -> "Deadline":
        """Start the clock."""
        return cls(None if minutes is None else time.monotonic() + 60.0 * minutes)

    @property
    def left_s(self) -> float | None:
        """Give the seconds that are left."""
        return None if self.ends_s is None else max(0.0, self.ends_s - time.monotonic())
