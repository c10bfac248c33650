"""What one tenant may ask for at once and in a minute, and what it hears beyond that: 429 with Retry-After.

Tokens are a bucket that refills evenly and holds one minute's worth. A request takes its prompt and the most it may
answer when it begins, and gives back what it did not use; one that is larger than the bucket may begin when it is full.
Not for: what the server as a whole can hold (``protocol/admission.py``), which no tenant's quota widens.
"""

import math
import time
from collections.abc import Callable, Mapping

from msgspec import Struct

from kvfence.core.ids import TenantId
from kvfence.gateway.responses import Failure, refuse_field


class Allowance(Struct, frozen=True):
    """One tenant's bounds; 0: none.

    Units:
        requests_max: choices being answered at one time. tokens_per_minute: of prompts and answers.
    """

    requests_max: int = 0
    tokens_per_minute: int = 0


class Ask(Struct, frozen=True):
    """What one request wants. Units: num_prompt, num_answer_max: tokens, the latter of all choices together."""

    num_choices: int
    num_prompt: int
    num_answer_max: int


class _Account(Struct):
    """What a tenant has in use and left. Units: tokens; at_s: when ``tokens`` was counted."""

    num_open: int = 0
    tokens: float = 0.0
    at_s: float = 0.0


class Lease:
    """What one request has taken; whoever holds it ends it once."""

    def __init__(self, account: _Account, ask: Ask, headers: dict[str, str]) -> None:
        self.headers = headers
        self._account, self._ask = account, ask

    def end(self, num_answer: int, *, refused: bool) -> None:
        """Give back what was not used; a request that was refused used nothing."""
        used = 0 if refused else self._ask.num_prompt + num_answer
        self._account.num_open -= self._ask.num_choices
        self._account.tokens += self._ask.num_prompt + self._ask.num_answer_max - used


class Quotas:
    """Every tenant's account. ``own``: the allowances of tenants that have one of their own."""

    def __init__(
        self,
        allowance: Allowance,
        own: Mapping[TenantId, Allowance] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowance, self._own, self._clock = allowance, own or {}, clock
        self._accounts: dict[TenantId, _Account] = {}

    def take(self, tenant: TenantId, ask: Ask) -> Lease | Failure:
        """Take what a request wants, or say when to ask again."""
        allowance = self._own.get(tenant, self._allowance)
        account = self._accounts.setdefault(tenant, _Account(0, float(allowance.tokens_per_minute), self._clock()))
        failure = _refuse_requests(allowance, account, ask.num_choices)
        if failure is not None:
            return failure
        num_tokens = ask.num_prompt + ask.num_answer_max
        if allowance.tokens_per_minute:
            self._refill(allowance, account)
            missing = min(num_tokens, allowance.tokens_per_minute) - account.tokens
            if missing > 0:
                return _too_many_tokens(allowance, account, missing)
        account.num_open += ask.num_choices
        account.tokens -= num_tokens
        return Lease(account, ask, _headers(allowance, account))

    def _refill(self, allowance: Allowance, account: _Account) -> None:
        now_s = self._clock()
        gained = (now_s - account.at_s) * allowance.tokens_per_minute / 60
        account.tokens, account.at_s = min(account.tokens + gained, float(allowance.tokens_per_minute)), now_s


def _refuse_requests(allowance: Allowance, account: _Account, num_choices: int) -> Failure | None:
    most = allowance.requests_max
    if not most or account.num_open + num_choices <= most:
        return None
    if num_choices > most:
        return refuse_field("n", f"n is at most {most} for this key.")
    message = f"This key has {account.num_open} requests open; {most} are allowed. Ask again when one has ended."
    return Failure(429, "requests", message, "rate_limit_exceeded", retry_after_s=1, reason="tenant_requests")


def _too_many_tokens(allowance: Allowance, account: _Account, missing: float) -> Failure:
    wait_s = max(1, math.ceil(missing * 60 / allowance.tokens_per_minute))
    message = (
        f"This key may use {allowance.tokens_per_minute} tokens in a minute, prompt and max_tokens together; "
        f"{max(0, int(account.tokens))} are left. Ask again in {wait_s} s, or lower max_tokens."
    )
    return Failure(
        429,
        "tokens",
        message,
        "rate_limit_exceeded",
        retry_after_s=wait_s,
        reason="tenant_tokens",
        headers=_headers(allowance, account),
    )


def _headers(allowance: Allowance, account: _Account) -> dict[str, str]:
    """Give OpenAI's headers of what is left, where there is a bound."""
    most = allowance.tokens_per_minute
    if not most:
        return {}
    reset_s = max(0.0, (most - account.tokens) * 60 / most)
    return {
        "x-ratelimit-limit-tokens": str(most),
        "x-ratelimit-remaining-tokens": str(max(0, int(account.tokens))),
        "x-ratelimit-reset-tokens": f"{math.ceil(reset_s)}s",
    }
