"""Gives each request its class and the reason, by the interval of the history that served it.

Works on the candidates alone, in the local DuckDB: whatever is plainly clear never comes here. The order of reasons in
``_reason`` is the order of the argument. Not for: which rows are one request (``merging.py``), whose pages could have
been read (``victims.py``).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import ibis
from msgspec import Struct, structs

from kvfence.scope.history import first_refused, vulnerable_of
from kvfence.scope.relation import CLASS_OF_REASON, Class, History, Interval
from kvfence.scope.store import Store, rows_of
from kvfence.scope.survey import BODY_SLACK, LONG_BODY_BYTES, was_refused
from kvfence.scope.values import DAY_BITS, ZONE_BITS, Value

FROM_WORST = tuple(Class)
RELEASES_MAX = 1000
RATED_ROWS_MIN, RATED_ROWS_MAX = 20, 1_000_000
EASTMOST_H, WESTMOST_H = 14, 12
"""Hours by which a clock can be ahead of UTC, and behind it."""
_INTERVAL_SCHEMA = {
    "interval": "int64",
    "of_model": "string",
    "of_replica": "string",
    "of_worker": "string",
    "from_time": "timestamp(6)",
    "to_time": "timestamp(6)",
    "pool_tokens": "int64",
    "decode_pool": "int64",
    "decode_most": "int64",
    "decode_since": "timestamp(6)",
    "context_tokens": "int64",
    "first_refused": "int64",
    "said_release": "string",
    "single": "boolean",
    "of_release": "boolean",
}


class Judgement(Struct, frozen=True):
    """By what requests are judged.

    Units: pool, context: tokens, used where the history is silent. window: [from, to), UTC.
        bytes_per_token, tokens_per_s: of this log, from requests whose length was logged; None: not enough of them.
    zone: what --time-zone says of times that name none; None: nobody said it.
    """

    history: History
    pool: int | None = None
    context: int | None = None
    window: tuple[datetime | None, datetime | None] = (None, None)
    bytes_per_token: float | None = None
    tokens_per_s: float | None = None
    zone: str | None = None


def intervals_of(judgement: Judgement) -> tuple[Interval, ...]:
    """Give the history's intervals, with ``--pool`` and ``--context`` where they are silent."""
    return tuple(
        structs.replace(
            each,
            pool=judgement.pool if each.pool is None else each.pool,
            context=judgement.context if each.context is None else each.context,
        )
        for each in judgement.history.intervals
    )


def classify(store: Store, requests: Any, judgement: Judgement) -> Any:
    """Give a local table of the requests with pool, context, vulnerable, reason and class."""
    numbered = store.keep("numbered", with_spread(requests, judgement.zone).mutate(n=ibis.row_number()))
    matched = _matched(store, numbered, judgement)
    judged = matched.mutate(reason=_reason(matched, judgement))
    judged = _agreed(judged)
    judged = judged.mutate(**{"class": class_of(judged["reason"])})
    return store.keep("judged", judged, "judging")


def class_of(reason: Value) -> Value:
    """Give the class of a reason."""
    pairs = [(reason == code, str(found)) for code, found in CLASS_OF_REASON.items()]
    return ibis.cases(*pairs, else_=str(Class.UNKNOWN))


def rank_of(found: Value) -> Value:
    """Give a class's place from the worst, 0, to CLEAR."""
    return ibis.cases(*((found == str(each), place) for place, each in enumerate(FROM_WORST)), else_=len(FROM_WORST))


# ---- when it may have been


def with_spread(rows: Any, zone: str | None) -> Any:
    """Add the earliest and the latest time at which a request may have been: its zone or its hour may not be logged."""
    started, bad = rows["started"], rows["bad"]
    naive, day = (bad & ZONE_BITS) != 0, (bad & DAY_BITS) != 0
    if zone is None:
        back = ibis.ifelse(naive, started - ibis.interval(hours=EASTMOST_H), started)
        on = ibis.ifelse(naive, started + ibis.interval(hours=WESTMOST_H), started)
    else:
        # Where the zone puts its clocks back an hour is written twice.
        name, hour = ibis.literal(zone), ibis.interval(hours=1)
        before, after = (_local(name, at.cast("timestamp('UTC')")) for at in (started - hour, started + hour))
        turned = naive & ((after.epoch_seconds() - before.epoch_seconds()) != 7200)
        back, on = ibis.ifelse(turned, started - hour, started), ibis.ifelse(turned, started + hour, started)
    on = ibis.ifelse(day, on + ibis.interval(hours=24) - ibis.interval(microseconds=1), on)
    return rows.mutate(earliest=back.cast("timestamp(6)"), latest=on.cast("timestamp(6)"))


@ibis.udf.scalar.builtin(name="timezone", signature=(("string", "timestamp('UTC')"), "timestamp(6)"))  # type: ignore[untyped-decorator]
def _local(zone: Value, at: Value) -> Value: ...


# ---- the interval that served it


def _matched(store: Store, requests: Any, judgement: Judgement) -> Any:
    """Join each request with the intervals that fit it best; several only where they name equally much of its place."""
    table = _interval_table(store, intervals_of(judgement))
    place = [
        table[f"of_{name}"].isnull() | requests[name].isnull() | (table[f"of_{name}"] == requests[name])
        for name in ("model", "replica", "worker")
    ]
    started = requests["started"]
    time = [
        table["from_time"].isnull() | started.isnull() | (requests["latest"] >= table["from_time"]),
        table["to_time"].isnull() | started.isnull() | (requests["earliest"] < table["to_time"]),
    ]
    joined = requests.left_join(table, [*place, *time])
    # An interval names more of a place only where the request does too: else it is one of several that may fit.
    named = {"model": 1, "replica": 2, "worker": 4}
    points = [
        ibis.ifelse(joined[f"of_{name}"].notnull() & joined[name].notnull(), weight, 0)
        for name, weight in named.items()
    ]
    score = ibis.ifelse(joined["interval"].isnull(), ibis.null("int64"), points[0] + points[1] + points[2])
    # One that names what the request leaves out may be another place's: it stands beside the others, not above them.
    sure = ~ibis.or_(*(joined[f"of_{name}"].notnull() & joined[name].isnull() for name in named))
    since = joined["from_time"].isnull() | (joined["earliest"] >= joined["from_time"]).fill_null(False)
    sure = sure & since & (joined["to_time"].isnull() | (joined["latest"] < joined["to_time"]).fill_null(False))
    reach = sum(ibis.ifelse(joined[f"of_{name}"].notnull(), weight, 0) for name, weight in named.items())
    joined = joined.mutate(score=score, sure=sure, reach=reach)
    best = ibis.ifelse(joined["sure"], joined["score"], -1).max().over(ibis.window(group_by="n"))
    joined = joined.mutate(best=best)
    joined = joined.filter(joined["score"].isnull() | (joined["reach"] >= joined["best"]))
    return joined.mutate(
        pool_tokens=ibis.coalesce(joined["pool_tokens"], _or_null(judgement.pool)),
        context_tokens=ibis.coalesce(joined["context_tokens"], _or_null(judgement.context)),
        first_refused=ibis.coalesce(
            joined["first_refused"], _or_null(None if judgement.pool is None else judgement.pool + 1)
        ),
        single=joined["single"].fill_null(False),
        vulnerable=_vulnerable(joined, judgement),
        release=ibis.coalesce(joined["said_release"], joined["release"]),
        begins_before=since,
        ends_after=joined["to_time"].isnull() | (joined["latest"] < joined["to_time"]).fill_null(False),
    ).drop(
        "said_release", "of_release", "best", "score", "sure", "reach",
        "of_model", "of_replica", "of_worker", "from_time", "to_time",
    )  # fmt: skip


def _interval_table(store: Store, intervals: Sequence[Interval]) -> Any:
    rows = [
        {
            "interval": number,
            "of_model": each.model,
            "of_replica": each.replica,
            "of_worker": worker,
            "from_time": each.start,
            "to_time": each.end,
            "pool_tokens": each.pool,
            "decode_pool": each.decode_pool,
            "decode_most": each.decode_most,
            "decode_since": each.decode_since,
            "context_tokens": each.context,
            "first_refused": first_refused(each),
            "said_release": each.release,
            "single": each.single,
            "of_release": each.vulnerable,
        }
        for number, each in enumerate(intervals)
        for worker in each.workers or (None,)
    ]
    return store.hold("intervals", rows, _INTERVAL_SCHEMA)


def _vulnerable(joined: Any, judgement: Judgement) -> Value:
    """Tell whether a request's release has the defect: as the history says, else, with a history, as its row does."""
    if not judgement.history.given:
        return ibis.literal(True)
    releases = [row["release"] for row in rows_of(joined.select("release").distinct())]
    named = sorted(name for name in releases if name is not None)[:RELEASES_MAX]
    pairs = [(joined["release"] == name, ibis.literal(vulnerable_of(name, None), "boolean")) for name in named]
    own = ibis.cases(*pairs, else_=True) if pairs else ibis.literal(True)
    silent = joined["interval"].isnull() | (joined["said_release"].isnull() & joined["of_release"])
    return ibis.ifelse(silent.fill_null(False), own, joined["of_release"])


def _or_null(number: int | None) -> Value:
    return ibis.null("int64") if number is None else ibis.literal(number, "int64")


# ---- the reason


def _reason(rows: Any, judgement: Judgement) -> Value:
    """Say why a request is in its class. Above, it is clear whatever else holds; below, it may be affected."""
    tokens, body, pool = rows["tokens"], rows["body_bytes"], rows["pool_tokens"]
    unsaid = tokens.isnull()
    one = tokens == 1
    beside_many = (body >= LONG_BODY_BYTES) | (rows["most_tokens"] > 1)
    over = tokens > pool
    small_body = unsaid & (body + BODY_SLACK < rows["first_refused"])
    fits = (tokens >= 2) & (tokens < rows["first_refused"])
    return _first(
        [
            (fits | (one & body.notnull() & ~beside_many), "fits"),
            (small_body, "body_fits"),
            (was_refused(rows), "refused"),
            (_outside(rows, judgement.window), "outside_window"),
            (rows["single"], "single_node"),
            (~rows["vulnerable"], "fixed_release"),
            # From here on it may be affected.
            (pool.isnull(), "no_pool"),
            (unsaid & rows["absurd"], "absurd_length"),
            (unsaid & ~_too_soon(rows, judgement), "no_length"),
            (one & ~beside_many.fill_null(False), "one_token_no_body"),
            (_needs_time(rows, judgement), "no_time"),
            (_on_a_border(rows, judgement.window), "zone_not_known"),
            (rows["status"].isnull(), "no_status"),
            (rows["status"] != 200, "ended_early"),
            (tokens > rows["context_tokens"], "over_context"),
            (tokens > rows["decode_pool"], "over_decode_pool"),
            (rows["vulnerable"].isnull(), "release_unknown"),
            (one, "one_token_long_body"),
            (unsaid, "ttft_below_prefill"),
            (over, "over_pool"),
        ],
        "over_engine_limit",
    )


def _first(cases: Sequence[tuple[Value, str]], otherwise: str) -> Value:
    """Give the first case that is true; what is null is not."""
    return ibis.cases(*((condition.fill_null(False), reason) for condition, reason in cases), else_=otherwise)


def _outside(rows: Any, window: tuple[datetime | None, datetime | None]) -> Value:
    """Tell whether a request lies outside the window, at whatever time it may have been."""
    outside: Value = ibis.literal(False)
    if window[0] is not None:
        outside = outside | (rows["latest"] < window[0])
    if window[1] is not None:
        outside = outside | (rows["earliest"] >= window[1])
    return outside


def _on_a_border(rows: Any, window: tuple[datetime | None, datetime | None]) -> Value:
    """Tell whether a request may lie in the window and may not."""
    borders: Value = ibis.literal(False)
    for border in window:
        if border is not None:
            borders = borders | ((rows["earliest"] < border) & (rows["latest"] >= border))
    return borders


def _needs_time(rows: Any, judgement: Judgement) -> Value:
    """Tell whether a request has no time although the window or the history turns on it."""
    bounded = any(judgement.window) or any(each.start or each.end for each in judgement.history.intervals)
    return rows["started"].isnull() if bounded else ibis.literal(False)


def _too_soon(rows: Any, judgement: Judgement) -> Value:
    """Tell whether a body is over the pool and its first token came sooner than prefilling the pool takes."""
    if judgement.bytes_per_token is None or judgement.tokens_per_s is None:
        return ibis.literal(False)
    over = rows["body_bytes"] > rows["pool_tokens"] * judgement.bytes_per_token
    needed_ms = rows["pool_tokens"] / judgement.tokens_per_s * 1000
    return (over & (rows["ttft_ms"] >= 0) & (rows["ttft_ms"] < needed_ms)).fill_null(False)


def _agreed(judged: Any) -> Any:
    """Leave one row a request: where several intervals fit and do not agree, it is UNKNOWN."""
    clear = judged["reason"].isin([code for code, found in CLASS_OF_REASON.items() if found is Class.CLEAR])
    same = ibis.window(group_by="n")
    judged = judged.mutate(
        least=judged["reason"].min().over(same),
        most=judged["reason"].max().over(same),
        all_clear=clear.cast("int64").min().over(same),
        # Of several intervals that fit, the one that leaves the most pages to be read.
        decode_most=_unless_any_null(judged["decode_most"], judged["decode_most"].max().over(same), same),
        decode_since=_unless_any_null(judged["decode_since"], judged["decode_since"].min().over(same), same),
        whole=(judged["begins_before"].any().over(same) & judged["ends_after"].any().over(same)).fill_null(True),
        place=ibis.row_number().over(ibis.window(group_by="n", order_by=[judged["pool_tokens"], judged["interval"]])),
    )
    judged = judged.filter(judged["place"] == 0)
    is_spread = judged["earliest"] < judged["latest"]
    # What may lie before the first interval, or after the last one, has a pool that nobody knows.
    agreed = ((judged["least"] == judged["most"]) | (judged["all_clear"] == 1)) & (judged["whole"] | ~is_spread)
    otherwise = ibis.cases(
        (judged["started"].isnull(), "no_time"), (is_spread, "zone_not_known"), else_="history_disagrees"
    )
    return judged.mutate(reason=ibis.ifelse(agreed.fill_null(True), judged["reason"], otherwise)).drop(
        "least", "most", "all_clear", "place", "whole", "begins_before", "ends_after"
    )


def _unless_any_null(value: Value, chosen: Value, same: Any) -> Value:
    return ibis.ifelse(value.isnull().cast("int64").max().over(same) == 0, chosen, ibis.null(value.type()))


# ---- rates of this log


def rates(store: Store, source: Any, floor: int) -> tuple[float | None, float | None]:
    """Give bytes a token (the most of ordinary requests) and prefilled tokens a second (the best), of this log.

    Only requests that fit every pool are looked at, at most a million; with fewer than twenty of them: None.
    """
    fits = source.filter(source["prompt_tokens"].between(1000, floor - 1))
    fits = store.keep("ordinary", fits.select("prompt_tokens", "body_bytes", "ttft_ms").head(RATED_ROWS_MAX))
    has_body, has_time = fits["body_bytes"] > 0, fits["ttft_ms"] > 0
    counted = fits.aggregate(
        bodies=has_body.sum(),
        bytes=(fits["body_bytes"] / fits["prompt_tokens"]).quantile(0.95, where=has_body),
        times=has_time.sum(),
        speed=(fits["prompt_tokens"] / fits["ttft_ms"] * 1000).quantile(0.99, where=has_time),
    )
    row = rows_of(counted)[0]
    return (
        row["bytes"] if (row["bodies"] or 0) >= RATED_ROWS_MIN else None,
        row["speed"] if (row["times"] or 0) >= RATED_ROWS_MIN else None,
    )
