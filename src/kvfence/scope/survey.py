"""All traffic in a few aggregates: counts by place and account, the lengths, and values that cannot be believed.

The only passes over every row. Expressions are ibis and run where the logs lie. Requests that are not plainly clear are
taken out (``candidates``) and worked on in ``classes.py``.
"""

from datetime import datetime
from typing import Any

import ibis
from msgspec import Struct

from kvfence.scope.relation import Trouble
from kvfence.scope.store import Store
from kvfence.scope.values import BAD_BITS, NO_ZONE_BIT, Value

LENGTH_MAX = 100_000_000
"""Tokens; no context is so long, and a longer prompt is not believed."""
LONG_BODY_BYTES = 4096
"""A body of so much is more than one token."""
BODY_SLACK = 4096
"""Tokens that a chat template and tools may add to a body's text."""
TIME_MIN, TIME_MAX = datetime.fromisoformat("2020-01-01"), datetime.fromisoformat("2096-01-01")
NOT_ANSWERED = (400, 599)
BROKEN_OFF = 499
LONG_ROWS_MAX = 3_000_000
LOST_ROWS_MAX = 1_000_000


class Bounds(Struct, frozen=True):
    """Where a prompt begins to matter.

    Units: floor: the least length that any pool of the history refuses; long: from where traffic is long; tokens.
        now: no request can have started later.
    """

    floor: int
    long: int
    now: datetime


class Survey(Struct, frozen=True):
    """What all rows say together. lost: rows with neither length nor body. plain: plainly CLEAR ones by reason."""

    places: Any
    accounts: Any
    lengths: Any
    rows: int
    plain: dict[str, int]
    long_rows: int
    lost: int
    first: datetime | None
    last: datetime | None
    troubles: dict[str, tuple[Trouble, ...]]


def length_of(source: Any) -> Value:
    """Give the prompt length that is believed; null where it is not."""
    tokens = source["prompt_tokens"]
    return ibis.ifelse((tokens > 0) & (tokens <= LENGTH_MAX), tokens, ibis.null("int64"))


def was_refused(source: Any) -> Value:
    """Tell whether the status says that nothing was answered."""
    status = source["status"]
    return (status.between(*NOT_ANSWERED) & (status != BROKEN_OFF)).fill_null(False)


def plain_reason(source: Any, bounds: Bounds) -> Value:
    """Give the reason of a plainly CLEAR row, which no history can change; null for every other one."""
    tokens, body = source["prompt_tokens"], source["body_bytes"]
    fits = tokens.between(2, bounds.floor - 1) | ((tokens == 1) & (body < LONG_BODY_BYTES))
    unsaid = tokens.isnull() | (tokens < 1) | (tokens > LENGTH_MAX)
    small = unsaid & (body >= 0) & (body + BODY_SLACK < bounds.floor)
    return ibis.cases(
        (fits.fill_null(False), "fits"),
        (unsaid & was_refused(source), "refused"),
        (small.fill_null(False), "body_fits"),
        else_=ibis.null("string"),
    )


def is_lost(source: Any, bounds: Bounds) -> Value:
    """Tell whether nothing in a row speaks of its length."""
    tokens = source["prompt_tokens"]
    unsaid = tokens.isnull() | (tokens < 1) | (tokens > LENGTH_MAX)
    return unsaid & source["body_bytes"].isnull() & plain_reason(source, bounds).isnull()


def survey(store: Store, source: Any, bounds: Bounds) -> Survey:
    """Pass over every row and keep the aggregates as local tables."""
    places = store.keep("places_raw", _places(source, bounds), "counting by place")
    accounts = store.keep("accounts_raw", _accounts(source, bounds), "counting by account")
    lengths = store.keep("lengths", _lengths(source), "counting lengths")
    total = places.aggregate(
        rows=places["requests"].sum(),
        fits=places["fits"].sum(),
        refused=places["refused"].sum(),
        body_fits=places["body_fits"].sum(),
        lost=places["lost"].sum(),
        long_rows=places["long_requests"].sum(),
        odd=places["odd"].sum(),
        first=places["first"].min(),
        last=places["last"].max(),
    )
    row = total.to_pyarrow().to_pylist()[0]
    return Survey(
        places=_merged_places(store, places),
        accounts=_merged_accounts(store, accounts),
        lengths=lengths,
        rows=int(row["rows"] or 0),
        plain={name: int(row[name]) for name in ("fits", "refused", "body_fits") if row[name]},
        long_rows=int(row["long_rows"] or 0),
        lost=int(row["lost"] or 0),
        first=row["first"],
        last=row["last"],
        troubles=_troubles(store, source, bounds) if row["odd"] else {},
    )


def _places(source: Any, bounds: Bounds) -> Any:
    tokens = length_of(source)
    reason = plain_reason(source, bounds)
    rows = source.select(
        "model",
        "replica",
        "worker",
        "started",
        "completion_tokens",
        hour=_believed_time(source, bounds).truncate("h"),
        tokens=tokens,
        fits=(reason == "fits").fill_null(False),
        refused=(reason == "refused").fill_null(False),
        body_fits=(reason == "body_fits").fill_null(False),
        lost=is_lost(source, bounds),
        odd=_is_odd(source, bounds),
    )
    return rows.group_by("hour", "model", "replica", "worker").aggregate(
        requests=rows.count(),
        long_requests=(rows["tokens"] >= bounds.long).fill_null(False).sum(),
        prompt_tokens=rows["tokens"].sum().cast("int64"),
        completion_tokens=ibis.ifelse(rows["completion_tokens"] > 0, rows["completion_tokens"], 0).sum().cast("int64"),
        longest_prompt=rows["tokens"].max(),
        fits=rows["fits"].sum(),
        refused=rows["refused"].sum(),
        body_fits=rows["body_fits"].sum(),
        lost=rows["lost"].sum(),
        odd=rows["odd"].sum(),
        first=rows["started"].min(),
        last=rows["started"].max(),
    )


def _believed_time(source: Any, bounds: Bounds) -> Value:
    started = source["started"]
    return ibis.ifelse(started.between(TIME_MIN, bounds.now), started, ibis.null("timestamp(6)"))


def _accounts(source: Any, bounds: Bounds) -> Any:
    rows = source.select("account", started=source["started"], tokens=length_of(source))
    return rows.group_by("account").aggregate(
        requests=rows.count(),
        long_requests=(rows["tokens"] >= bounds.long).fill_null(False).sum(),
        longest_prompt=rows["tokens"].max(),
        first=rows["started"].min(),
        last=rows["started"].max(),
    )


def _lengths(source: Any) -> Any:
    tokens = length_of(source)
    rows = source.select("model", bucket=(tokens.cast("float64").log2() * 4).floor().cast("int64"))
    return rows.group_by("model", "bucket").aggregate(requests=rows.count())


def _merged_places(store: Store, raw: Any) -> Any:
    columns = ("requests", "long_requests", "prompt_tokens", "completion_tokens")
    cleaned = raw.mutate(**{name: clean(raw[name]) for name in ("model", "replica", "worker")})
    merged = cleaned.group_by("hour", "model", "replica", "worker").aggregate(
        **{name: cleaned[name].sum().cast("int64") for name in columns}, longest_prompt=cleaned["longest_prompt"].max()
    )
    return store.keep("places", merged)


def _merged_accounts(store: Store, raw: Any) -> Any:
    cleaned = raw.mutate(account=clean(raw["account"]))
    merged = cleaned.group_by("account").aggregate(
        requests=cleaned["requests"].sum().cast("int64"),
        long_requests=cleaned["long_requests"].sum().cast("int64"),
        longest_prompt=cleaned["longest_prompt"].max(),
        first=cleaned["first"].min(),
        last=cleaned["last"].max(),
    )
    return store.keep("accounts", merged)


def clean(text: Value) -> Value:
    """Give a text of a log bounded, and null where it says nothing."""
    short = text.substr(0, 256)
    return ibis.ifelse(short.isin(["", "-"]), ibis.null("string"), short)


# ---- what cannot be believed


def _oddities(source: Any, bounds: Bounds) -> dict[str, tuple[str, Value]]:
    """Give each kind of value that is counted beside the classes, with its words and the rows that have it."""
    bad = source["bad"]
    kinds: dict[str, tuple[str, Value]] = {
        f"unreadable_{name}": (f"{name}: something that is no value of it", (bad & bit) != 0)
        for name, bit in BAD_BITS.items()
    }
    tokens, started, status = source["prompt_tokens"], source["started"], source["status"]
    kinds |= {
        "no_zone": ("times without a zone, read as UTC or as --time-zone says", (bad & NO_ZONE_BIT) != 0),
        "nought_tokens": ("prompt_tokens of nought", tokens == 0),
        "absurd_tokens": (f"prompt_tokens above {LENGTH_MAX:,}", tokens > LENGTH_MAX),
        "absurd_status": ("status that is none of HTTP's", ~status.between(100, 599)),
        "before_2020": ("started before 2020: a clock that was not set", started < TIME_MIN),
        "in_the_future": ("started in the future: a clock that is ahead", started > bounds.now),
    }
    for name in ("prompt_tokens", "completion_tokens", "ttft_ms", "duration_ms", "body_bytes"):
        kinds[f"negative_{name}"] = (f"{name} below nought", source[name] < 0)
    return kinds


def _is_odd(source: Any, bounds: Bounds) -> Value:
    flags = [flag for _words, flag in _oddities(source, bounds).values()]
    whole = source["bad"] != 0
    for flag in flags[len(BAD_BITS) + 1 :]:
        whole = whole | flag.fill_null(False)
    return whole


def _troubles(store: Store, source: Any, bounds: Bounds) -> dict[str, tuple[Trouble, ...]]:
    """Count each oddity by file, over the rows that have any."""
    odd = source.filter(_is_odd(source, bounds))
    kinds = _oddities(odd, bounds)
    flags = {name: flag.fill_null(False) for name, (_words, flag) in kinds.items()}
    line = odd["source_line"]
    counted = odd.group_by("source_file").aggregate(
        **{name: flag.sum() for name, flag in flags.items()},
        **{f"first_{name}": ibis.ifelse(flag, line, ibis.null("int64")).min() for name, flag in flags.items()},
    )
    with store.watching("counting what is odd"):
        rows = counted.to_pyarrow().to_pylist()
    return {
        row["source_file"]: tuple(
            Trouble(name, int(row[name]), kinds[name][0], row[f"first_{name}"]) for name in kinds if row[name]
        )
        for row in rows
    }


# ---- what is worked on further


def candidates(store: Store, source: Any, bounds: Bounds, lost: int) -> Any:
    """Keep the rows that are not plainly clear, and the plainly clear ones that are long: the baseline."""
    tokens = source["prompt_tokens"]
    rows = source.filter((tokens >= min(bounds.long, bounds.floor)) | tokens.isnull() | (tokens <= 1))
    wanted = plain_reason(rows, bounds).isnull() | (rows["prompt_tokens"].between(bounds.long, bounds.floor - 1))
    if lost > LOST_ROWS_MAX:
        wanted = wanted & ~is_lost(rows, bounds)
    return store.keep("candidates", rows.filter(wanted.fill_null(False)), "taking out what is not plainly clear")
