"""Long-context traffic as people make it: sessions that grow, one document asked again, pipelines, an odd retry.

Accounts differ much from each other here, on purpose: a test that takes every busy account for a prober must fail.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvfence.scope.synth.fleet import LONG_ACCOUNTS, Fleet, instants
from kvfence.scope.synth.ordinary import SHORT_MAX
from kvfence.scope.synth.plan import Plan
from kvfence.scope.synth.rows import Rows

LONG_MIN, LONG_MAX = 1_500, 30_000
"""Requests in long-context sessions, in all."""

PIPELINES = 8
"""Accounts, the first ones, that send many documents one after the other."""


class Span(Struct, frozen=True):
    """A piece of time. shares: of all traffic, from and to; replicas: those of the exposed model that serve it."""

    shares: tuple[float, float]
    replicas: tuple[int, ...]
    salt: int


def long_requests(plan: Plan) -> int:
    """Give the number of long-context requests of a plan."""
    return int(min(max(plan.requests * 0.0006, LONG_MIN), LONG_MAX))


def sessions(plan: Plan, fleet: Fleet, span: Span) -> Rows:
    """Make the long-context requests of a span to the exposed model; none is above its context."""
    rng = np.random.default_rng([plan.seed, 3, span.salt])
    wanted = max(int(long_requests(plan) * (span.shares[1] - span.shares[0])), 1)
    drawn: list[tuple[int, float, float, int]] = []
    while len(drawn) < wanted:
        drawn += _session(rng, fleet, span)
    columns = np.array(drawn[:wanted], dtype=np.float64).T
    length = _below(np.maximum(columns[2], SHORT_MAX), plan.context).astype(np.int64)
    rows = asked(plan, rng, columns[1].astype(np.int64), length)
    rows["account"] = columns[0].astype(np.int32)
    rows["replica"] = np.array(span.replicas, np.int32)[columns[3].astype(np.int64) % len(span.replicas)]
    rows["decode"] = rows["replica"] * 2 + (columns[3].astype(np.int32) // 16) % 2
    return rows


def asked(plan: Plan, rng: np.random.Generator, times: NDArray[Any], lengths: NDArray[Any]) -> Rows:
    """Make answered requests to the exposed model with these times and lengths; who and where are the caller's."""
    count = len(times)
    completion = np.clip(700.0 * np.exp(0.8 * rng.standard_normal(count)), 16, 16_384).astype(np.int64)
    ttft = 300.0 + lengths / plan.models[0].prefill_rate * 1000 * rng.uniform(0.9, 1.3, count)
    return {
        "time": times,
        "id": np.zeros(count, np.uint64),
        "account": np.zeros(count, np.int32),
        "model": np.zeros(count, np.int32),
        "replica": np.zeros(count, np.int32),
        "decode": np.zeros(count, np.int32),
        "prompt": lengths,
        "cached": np.zeros(count, np.int64),
        "completion": completion,
        "status": np.full(count, 200, np.int16),
        "ttft": ttft,
        "duration": ttft + completion * 14.0,
        "request_bytes": lengths * 4 + 420,
        "response_bytes": completion * 5 + 260,
        "agent": rng.integers(0, 4, count).astype(np.int32),
        "stream": rng.random(count) < 0.7,
    }


def answered_too_soon(rows: Rows, rng: np.random.Generator) -> Rows:
    """Give the rows with a first token that came sooner than such a prompt can be computed: the leak's mark."""
    ttft = 450.0 * np.exp(0.5 * rng.standard_normal(len(rows["time"])))
    return {**rows, "ttft": ttft, "duration": ttft + rows["completion"] * 14.0}


def _session(rng: np.random.Generator, fleet: Fleet, span: Span) -> Iterator[tuple[int, float, float, int]]:
    """Give one session's requests: account, time, length, a number that chooses the machine."""
    account = int(LONG_ACCOUNTS * rng.random() ** 1.5)
    pipeline = account < PIPELINES
    count = int(rng.geometric(0.12 if pipeline else 0.3))
    start = instants(fleet, rng.uniform(*span.shares, 1))[0]
    gaps = (25_000 if pipeline else 180_000) * np.exp(1.1 * rng.standard_normal(count))
    length = float(SHORT_MAX * np.exp(rng.exponential(0.75)))
    time, end = float(start), float(instants(fleet, np.array([span.shares[1]]))[0])
    for index in range(count):
        if time >= end:
            return
        yield account, time, length, int(rng.integers(0, 1 << 20))
        time += max(float(gaps[index]), 900.0)
        length = _next_length(rng, account, length)


def _next_length(rng: np.random.Generator, account: int, length: float) -> float:
    """Give the length of the next request: the same after a failure, grown in a chat, near in questions, or new."""
    if rng.random() < 0.06:
        return length
    if account < PIPELINES:
        return float(SHORT_MAX * np.exp(rng.exponential(0.75)))
    if account % 2:
        return length * (1.0 + float(rng.lognormal(-4.2, 1.2)))
    return max(length + float(rng.integers(-3_000, 3_000)), SHORT_MAX)


def _below(lengths: NDArray[Any], context: int) -> NDArray[Any]:
    """Bring what is beyond a context below it, each length to a place of its own: nobody's prompts pile up there."""
    room = context - 4_096
    bent: NDArray[Any] = np.where(lengths > room, room * (1.0 - np.modf(lengths * 0.618)[0] * 0.2), lengths)
    return bent


def exactly(lengths: NDArray[Any], limit: int, above: int, context: int) -> NDArray[Any]:
    """Scale lengths so that the given number of them is above a limit, keeping their order and the context.

    Shapes:
        lengths: [requests], above < requests.
    """
    order = np.argsort(-lengths, kind="stable")
    scale = (limit + 2) / float(lengths[order[above - 1]]) if above else 1.0
    scaled = _below(lengths * max(scale, 0.2), context).astype(np.int64)
    spread = np.arange(len(lengths)) % 997
    made = scaled.copy()
    made[order[:above]] = np.maximum(scaled[order[:above]], limit + 2 + spread[:above])
    made[order[above:]] = np.minimum(scaled[order[above:]], limit - 1 - spread[above:])
    return made
