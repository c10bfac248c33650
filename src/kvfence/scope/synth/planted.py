"""The planted incident and its traps: few rows, each with the class a right report gives it.

Affected rows are the ordinary sessions' own longest prompts, so that accounts and times are those of ordinary traffic;
the traps stand beside them.
"""

from datetime import datetime, timedelta
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvfence.scope.synth.fleet import LONG_ACCOUNTS, PROBER, REPORTER, TESTERS, Fleet, share_of
from kvfence.scope.synth.plan import (
    EAST_REPLICA,
    FIXED_REPLICA,
    RESIZED_REPLICA,
    Plan,
    Prober,
    milliseconds,
)
from kvfence.scope.synth.rows import Rows, joined, request_numbers, taken
from kvfence.scope.synth.sessions import Span, answered_too_soon, asked, exactly, sessions

EXPOSED = (0, 1, 2, 3, 4, EAST_REPLICA)
"""The exposed model's replicas that keep the small pool and the vulnerable release until the patch."""

EAST, AT_LIMIT, TESTS, REPORTS, BY_ID = 4, 1, 18, 9, 3
LIKELY, UNKNOWN, REFUSED, ON_FIXED, ON_RESIZED, TOO_EARLY, AGAIN = 7, 9, 20, 12, 15, 6, 40
PROBES = 30


class Planted(Struct, frozen=True):
    """late: duplicates that were shipped once more, at the log's end; excluded_ids: for the exclude file."""

    rows: Rows
    late: Rows
    expected: dict[str, int]
    excluded_ids: tuple[int, ...]


class _Group(Struct, frozen=True):
    """Rows of one kind. account: -1 draws ordinary ones."""

    count: int
    since: datetime
    until: datetime
    replicas: tuple[int, ...]
    account: int = -1
    slow: bool = False


def plant(plan: Plan, fleet: Fleet) -> Planted:
    """Make the incident, its traps and the long-context traffic around it."""
    rng = np.random.default_rng([plan.seed, 4])
    probes = _probes(plan, fleet, rng)
    probed = int(np.sum(probes["prompt"] > plan.pool))
    own = _excluded(plan, fleet, rng)
    parts = [
        *_around(plan, fleet),
        _within(plan, fleet, rng, plan.affected - EAST - AT_LIMIT - probed),
        probes,
        _at_the_limit(plan, rng),
        *_traps(plan, rng),
        own,
    ]
    rows = joined(parts)
    rows["id"] = request_numbers(plan.requests, len(rows["time"]), plan.seed)
    by_id = tuple(int(number) for number in rows["id"][-BY_ID:])
    again = np.concatenate([np.flatnonzero(_leaked(rows, plan))[: AGAIN // 2], rng.integers(0, 200, AGAIN // 2)])
    expected = {"affected": plan.affected, "likely": LIKELY, "excluded": TESTS + REPORTS + BY_ID, "unknown": UNKNOWN}
    return Planted(rows, taken(rows, np.unique(again)), expected, by_id)


def _leaked(rows: Rows, plan: Plan) -> NDArray[Any]:
    time, over = rows["time"], rows["prompt"] > plan.pool
    inside = (time >= milliseconds(plan.start)) & (time < milliseconds(plan.private))
    return np.asarray(inside & over & np.isin(rows["replica"], EXPOSED))


def _around(plan: Plan, fleet: Fleet) -> list[Rows]:
    """Long-context traffic before and after the window, when the pools held every prompt."""
    start, public = (share_of(fleet, milliseconds(moment)) for moment in (plan.start, plan.public))
    everywhere = tuple(range(plan.models[0].replicas))
    return [
        sessions(plan, fleet, Span((0.0, start), everywhere, 1)),
        sessions(plan, fleet, Span((public, 1.0), everywhere, 2)),
    ]


def _within(plan: Plan, fleet: Fleet, rng: np.random.Generator, above: int) -> Rows:
    """Long-context traffic of the window; the given number of its prompts is above the pool."""
    shares = tuple(share_of(fleet, milliseconds(moment)) for moment in (plan.start, plan.private))
    rows = sessions(plan, fleet, Span((shares[0], shares[1]), EXPOSED, 3))
    lengths = exactly(rows["prompt"], plan.pool, above, plan.context)
    rows = rows | {"prompt": lengths, "request_bytes": lengths * 4 + 420}
    over = rows["prompt"] > plan.pool
    return joined([taken(rows, ~over), answered_too_soon(taken(rows, over), rng)])


def _group(plan: Plan, rng: np.random.Generator, group: _Group) -> Rows:
    """Make rows above the pool, spread over a time."""
    since, until = milliseconds(group.since), milliseconds(group.until)
    times = np.sort(rng.integers(since, until, group.count))
    rows = asked(plan, rng, times, _above(plan, rng, group.count))
    ordinary = rng.integers(0, LONG_ACCOUNTS, group.count).astype(np.int32)
    rows["account"] = ordinary if group.account < 0 else np.full(group.count, group.account, np.int32)
    rows["replica"] = rng.choice(np.array(group.replicas, np.int32), group.count)
    rows["decode"] = rows["replica"] * 2 + rng.integers(0, 2, group.count).astype(np.int32)
    return rows if group.slow else answered_too_soon(rows, rng)


def _above(plan: Plan, rng: np.random.Generator, count: int) -> NDArray[Any]:
    room = plan.context - 4_096 - plan.pool
    return (plan.pool + 2 + np.minimum(rng.exponential(0.25, count), 0.99) * room).astype(np.int64)


def _at_the_limit(plan: Plan, rng: np.random.Generator) -> Rows:
    """Two prompts: one that fills the pool to the last token, and one with a token more."""
    middle = plan.start + timedelta(days=5)
    rows = _group(plan, rng, _Group(2, middle, middle + timedelta(hours=5), EXPOSED[:5], slow=True))
    return rows | {"prompt": np.array([plan.pool, plan.pool + 1], np.int64)}


def _traps(plan: Plan, rng: np.random.Generator) -> list[Rows]:
    """Rows that a careless count gets wrong, in the order of the names above."""
    hour = timedelta(hours=1)
    fixed, resized = plan.fixed_replica_from, plan.resized_replica_from
    whole = (plan.start, plan.private)

    def made(*group: Any, **more: Any) -> Rows:
        return _group(plan, rng, _Group(*group, **more))

    refused = made(REFUSED, *whole, EXPOSED[:5])
    count = len(refused["time"])
    refused |= {
        "status": np.full(count, 400, np.int16),
        "completion": np.full(count, -1),
        "ttft": np.full(count, np.nan),
    }
    return [
        made(EAST, plan.private - 7 * hour, plan.private - hour / 2, (EAST_REPLICA,)),
        made(TOO_EARLY, plan.start - 7 * hour, plan.start - hour / 2, (EAST_REPLICA,), slow=True),
        refused,
        made(ON_FIXED, fixed + hour, plan.private, (FIXED_REPLICA,), slow=True),
        made(ON_RESIZED, resized + hour, plan.private, (RESIZED_REPLICA,), slow=True),
        _without_length(plan, made(LIKELY, *whole, EXPOSED[:5]), logged_ttft=True),
        _without_length(plan, made(UNKNOWN, plan.start, fixed, (FIXED_REPLICA,)), logged_ttft=False),
    ]


def _without_length(plan: Plan, rows: Rows, logged_ttft: bool) -> Rows:
    """Give rows whose usage was never logged, as when a stream ends without its last chunk; their bodies are long."""
    count = len(rows["time"])
    rows = rows | {"request_bytes": rows["request_bytes"] + 2 * plan.pool}
    nothing = {name: np.full(count, -1, np.int64) for name in ("prompt", "cached", "completion")}
    times = {} if logged_ttft else {"ttft": np.full(count, np.nan)}
    return rows | nothing | times


def _excluded(plan: Plan, fleet: Fleet, rng: np.random.Generator) -> Rows:
    """The provider's own tests, the reporter's, and a few by id: they leaked, and are nobody's loss. Ids stand last."""
    hour = timedelta(hours=1)
    testers, reporter = fleet.account(TESTERS), fleet.account(REPORTER)
    evening = plan.end - timedelta(hours=27)
    groups = (
        _Group(TESTS, plan.end - 16 * hour, plan.private + 4 * hour, EXPOSED[:5], testers),
        _Group(REPORTS, evening, evening + 2 * hour, EXPOSED[:5], reporter),
        _Group(BY_ID, plan.end - 15 * hour, plan.private, EXPOSED[:5]),
    )
    return joined([_group(plan, rng, group) for group in groups])


def _probes(plan: Plan, fleet: Fleet, rng: np.random.Generator) -> Rows:
    """The planted prober's requests; none where no prober is asked for."""
    count, start = PROBES, milliseconds(plan.start + timedelta(days=6, hours=3))
    if plan.prober is Prober.LADDER:
        times = start + np.arange(count) * 420_000 + rng.integers(0, 60_000, count)
        lengths = plan.pool - 14 * 3_000 + np.arange(count) * 3_000
    elif plan.prober is Prober.REPEAT:
        times = np.sort(start + rng.integers(0, 5 * 86_400_000, count))
        lengths = np.full(count, plan.pool + 9_000)
    elif plan.prober is Prober.BURST:
        times = np.sort(start + rng.integers(0, 240_000, count))
        lengths = _above(plan, rng, count)
    else:
        times = lengths = np.zeros(0, np.int64)
    rows = asked(plan, rng, times.astype(np.int64), lengths.astype(np.int64))
    rows["account"] = np.full(len(times), fleet.account(PROBER), np.int32)
    rows["replica"] = rng.choice(np.array(EXPOSED[:5], np.int32), len(times))
    rows["decode"] = rows["replica"] * 2
    over = lengths > plan.pool
    return joined([taken(rows, ~over), answered_too_soon(taken(rows, over), rng)])
