"""All traffic in a few aggregates: counts by place and account, the lengths, and values that cannot be believed.

The only passes over every row. Expressions are ibis and run where the logs lie. Requests that are not plainly clear are
taken out (``candidates``) and worked on in ``classes.py``.
"""

from datetime import datetime
from typing import Any

import ibis
from msgspec import Struct, structs

from kvfence.scope.ingest import Sources
from kvfence.scope.relation import Trouble
from kvfence.scope.store import Store, number_of, rows_of
from kvfence.scope.values import BAD_BITS, DAY_ONLY, DAY_ONLY_BIT, NO_ZONE, NO_ZONE_BIT, ROW_BITS, Value

LENGTH_MAX = 100_000_000
"""Tokens; no context is so long, and a longer prompt is not believed."""
LONG_BODY_BYTES = 4096
"""A body of so much is more than one token."""
BODY_SLACK = 4096
"""Tokens that a chat template and tools may add to a body's text."""
TIME_MIN, TIME_MAX = datetime.fromisoformat("2020-01-01"), datetime.fromisoformat("2096-01-01")
NOT_ANSWERED = (400, 599)
BROKEN_OFF = 499
TURNED_AWAY = (400, 498)
TIMED_OUT = 408
FAILED = 500
LONG_ROWS_MAX = 3_000_000
"""With more long rows only those over some pool are kept."""
EXACT_ROWS_MAX = 20_000_000
"""Up to so many rows are compared with each other for duplicates; above, only those that are not plainly clear."""
UNSAID_ROWS_MAX = 1_000_000
"""Of more rows without a length, those that nothing can be told of are counted and not kept."""


class Bounds(Struct, frozen=True):
    """Where a prompt begins to matter.

    Units: floor: the least length that any pool of the history refuses; long: from where traffic is long; tokens.
        now: no request can have started later.
    """

    floor: int
    long: int
    now: datetime


class Survey(Struct, frozen=True):
    """What all rows say together.

    kept: the rows that ``classes.py`` works on: not plainly clear, or long. plain: the other ones by reason.
    lost: rows with neither length nor body that were too many to be kept.
    """

    places: Any
    accounts: Any
    lengths: Any
    kept: Any
    rows: int
    plain: dict[str, int]
    lost: int
    bounds: Bounds
    first: datetime | None
    last: datetime | None
    troubles: dict[str, tuple[Trouble, ...]]


def length_of(source: Any) -> Value:
    """Give the prompt length that is believed; null where it is not."""
    tokens = source["prompt_tokens"]
    return ibis.ifelse((tokens > 0) & (tokens <= LENGTH_MAX), tokens, ibis.null("int64"))


def was_refused(source: Any) -> Value:
    """Tell whether the status says that nothing was answered; a failure after counted output is none."""
    status = source["status"]
    midway = ((status >= FAILED) & (source["completion_tokens"] > 1)).fill_null(False)
    return (status.between(*NOT_ANSWERED) & (status != BROKEN_OFF)).fill_null(False) & ~midway


def never_ran(source: Any) -> Value:
    """Tell whether the status says that nothing was computed and there were no pages; what failed may have had some."""
    status = source["status"]
    return (status.between(*TURNED_AWAY) & (status != TIMED_OUT)).fill_null(False)


def plain_reason(source: Any, bounds: Bounds) -> Value:
    """Give the reason of a plainly CLEAR row, which no history can change; null for every other one."""
    tokens, body = source["prompt_tokens"], source["body_bytes"]
    fits = tokens.between(2, bounds.floor - 1) | ((tokens == 1) & body.between(1, LONG_BODY_BYTES - 1))
    unsaid = tokens.isnull() | (tokens < 1) | (tokens > LENGTH_MAX)
    small = unsaid & (body > 0) & (body + BODY_SLACK < bounds.floor)
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
    return unsaid & ~(source["body_bytes"] > 0).fill_null(False) & plain_reason(source, bounds).isnull()


def survey(store: Store, sources: Sources, source: Any, bounds: Bounds) -> Survey:
    """Pass over every row and keep the aggregates as local tables."""
    exact = store.keep("lengths_raw", _exact_lengths(source), "counting lengths")
    rows, long_rows, unsaid = (
        number_of(exact.filter(each)["n"].sum())
        for each in (ibis.literal(True), exact["prompt_tokens"] >= bounds.long, _is_unsaid(exact))
    )
    if long_rows > LONG_ROWS_MAX:
        bounds = structs.replace(bounds, long=bounds.floor)
    plain, lost = _plain_unsaid(store, source, bounds) if unsaid > UNSAID_ROWS_MAX else ({}, 0)
    unsaid_rows = source.filter(_is_unsaid(source))
    if unsaid > UNSAID_ROWS_MAX:
        unsaid_rows = unsaid_rows.filter(plain_reason(unsaid_rows, bounds).isnull() & ~is_lost(unsaid_rows, bounds))
    kept = _kept(store, source, bounds, unsaid_rows if unsaid else None, rows > EXACT_ROWS_MAX)
    short = rows - number_of(kept.count()) - sum(plain.values()) - lost
    all_believed = _within(sources, "prompt_tokens") and _within(sources, "completion_tokens")
    places = _places(store, source, all_believed)
    accounts = store.keep("accounts_raw", _accounts(source, all_believed), "counting by account")
    long = kept.filter(_believed(kept["prompt_tokens"]) >= bounds.long)
    times = rows_of(places.aggregate(first=places["first"].min(), last=places["last"].max()))[0]
    return Survey(
        places=_merged_places(store, places, long, bounds),
        accounts=_merged_accounts(store, accounts, long),
        lengths=_lengths(store, exact),
        kept=kept,
        rows=rows,
        plain={**plain, "fits": short},
        lost=lost,
        bounds=bounds,
        **times,
        troubles=_troubles(store, source, bounds) if _may_be_odd(sources, bounds) else {},
    )


def _is_unsaid(source: Any) -> Value:
    return source["prompt_tokens"].isnull() | (source["prompt_tokens"] <= 1)


def _plain_unsaid(store: Store, source: Any, bounds: Bounds) -> tuple[dict[str, int], int]:
    """Count the rows of an unsaid length that need not be kept: plainly clear ones by reason, and lost ones."""
    unsaid = source.filter(_is_unsaid(source))
    reason = ibis.ifelse(is_lost(unsaid, bounds), "lost", plain_reason(unsaid, bounds))
    counted = unsaid.select(reason=reason).group_by("reason").aggregate(rows=lambda t: t.count())
    with store.watching("counting what has no length"):
        found = {row["reason"]: int(row["rows"]) for row in rows_of(counted) if row["reason"]}
    return {name: count for name, count in found.items() if name != "lost"}, found.get("lost", 0)


def _kept(store: Store, source: Any, bounds: Bounds, unsaid: Any | None, many: bool) -> Any:
    """Keep the rows that are not plainly clear, and those that are long: the baseline.

    unsaid: those without a length, None where there are none. many: the log is so large that of the baseline only the
    columns are read that its statistics need.
    """
    parts = [source.filter(source["prompt_tokens"] >= bounds.floor)] + ([] if unsaid is None else [unsaid])
    baseline = source.filter(source["prompt_tokens"].between(bounds.long, bounds.floor - 1))
    if many:
        narrow = {name: ibis.null(baseline[name].type()).name(name) for name in _NOT_IN_BASELINE}
        baseline = baseline.mutate(**narrow)
    return store.keep("candidates", ibis.union(*parts, baseline), "taking out what is not plainly clear")


_PLACE = ("model", "replica", "worker")
_EPOCH = ibis.timestamp("1970-01-01")
_NOT_IN_BASELINE = ("request_id", "completion_tokens", "status", "ttft_ms", "duration_ms", "body_bytes", "release")


def _places(store: Store, source: Any, all_believed: bool) -> Any:
    """Count by hour and place. Hours are numbers where the logs lie: that is quick, and every backend has it."""
    started = source["started"]
    if store.holds(source):
        number = started.delta(_EPOCH, unit="hour")
    else:
        number = (started.epoch_seconds() / 3600).floor().cast("int64")
    tokens, completion = source["prompt_tokens"], source["completion_tokens"]
    if not all_believed:
        tokens, completion = _believed(tokens), _believed(completion, 0)
    rows = source.select(*_PLACE, "started", number=number, tokens=tokens, completion=completion)
    same = _constants(source, *_PLACE)
    counted = rows.group_by("number", *(name for name in _PLACE if name not in same)).aggregate(
        requests=rows.count(),
        prompt_tokens=rows["tokens"].sum().cast("int64"),
        completion_tokens=rows["completion"].sum().cast("int64"),
        longest_prompt=rows["tokens"].max().cast("int64"),
        first=rows["started"].min().cast("timestamp(6)"),
        last=rows["started"].max().cast("timestamp(6)"),
    )
    held = store.keep("places_numbered", counted.mutate(**same), "counting by place")
    hour = _EPOCH + (held["number"] * 3600).as_interval("s")
    return store.keep("places_raw", held.mutate(hour=hour.cast("timestamp(6)")).drop("number"))


def _constants(source: Any, *names: str) -> dict[str, Value]:
    """Give the columns that hold one value in all rows: grouping by one costs as much as by another."""
    values = {name: getattr(source.op(), "values", {}).get(name) for name in names}
    return {name: each.to_expr() for name, each in values.items() if isinstance(each, ibis.expr.operations.Literal)}


def _believed(tokens: Value, least: int = 1) -> Value:
    return ibis.ifelse(tokens.between(least, LENGTH_MAX), tokens, ibis.null("int64"))


def _within(sources: Sources, name: str) -> bool:
    """Tell by the files' statistics whether all numbers of a column can be believed."""
    least = 1 if name == "prompt_tokens" else 0
    told = (sources.ranges or {}).get(name)
    return bool(told) and all(low >= least and high <= LENGTH_MAX for low, high in told or ())


def _accounts(source: Any, all_believed: bool) -> Any:
    tokens = source["prompt_tokens"] if all_believed else _believed(source["prompt_tokens"])
    rows = source.select("account", "started", tokens=tokens)
    return rows.group_by("account").aggregate(
        requests=rows.count(),
        longest_prompt=rows["tokens"].max().cast("int64"),
        first=rows["started"].min(),
        last=rows["started"].max(),
    )


def _exact_lengths(source: Any) -> Any:
    same = _constants(source, "model")
    keys = ("prompt_tokens",) if same else ("model", "prompt_tokens")
    return source.group_by(*keys).aggregate(n=source.count()).mutate(**same)


def _lengths(store: Store, exact: Any) -> Any:
    """Count by bucket: the logarithm is taken of each length once."""
    bucket = (_believed(exact["prompt_tokens"]).cast("float64").log2() * 4).floor().cast("int64")
    cleaned = exact.select(model=clean(exact["model"]), bucket=bucket, n="n")
    return store.keep(
        "lengths", cleaned.group_by("model", "bucket").aggregate(requests=cleaned["n"].sum().cast("int64"))
    )


def _merged_places(store: Store, raw: Any, long: Any, bounds: Bounds) -> Any:
    hours = long.mutate(hour=long["started"].truncate("h").cast("timestamp(6)"))
    raw = _with_long(raw, hours, ("hour", *_PLACE))
    columns = ("requests", "long_requests", "prompt_tokens", "completion_tokens")
    hour = ibis.ifelse(raw["hour"].between(TIME_MIN, bounds.now), raw["hour"], ibis.null("timestamp(6)"))
    cleaned = raw.mutate(hour=hour, **{name: clean(raw[name]) for name in _PLACE})
    merged = cleaned.group_by("hour", *_PLACE).aggregate(
        **{name: cleaned[name].sum().cast("int64") for name in columns}, longest_prompt=cleaned["longest_prompt"].max()
    )
    return store.keep("places", merged)


def _merged_accounts(store: Store, raw: Any, long: Any) -> Any:
    raw = _with_long(raw, long, ("account",))
    cleaned = raw.mutate(account=clean(raw["account"]))
    merged = cleaned.group_by("account").aggregate(
        requests=cleaned["requests"].sum().cast("int64"),
        long_requests=cleaned["long_requests"].sum().cast("int64"),
        longest_prompt=cleaned["longest_prompt"].max(),
        first=cleaned["first"].min(),
        last=cleaned["last"].max(),
    )
    return store.keep("accounts", merged)


def _with_long(raw: Any, long: Any, keys: tuple[str, ...]) -> Any:
    """Add rows that count the long requests: those were all kept, and nobody looks for them among all rows again."""
    counted = long.group_by(*keys).aggregate(long_requests=long.count())
    whole = raw.mutate(long_requests=ibis.literal(0, "int64"))
    silent = {name: ibis.null(dtype) for name, dtype in whole.schema().items() if name not in counted.columns}
    return ibis.union(whole, counted.mutate(**silent).select(*whole.columns))


SAYS_NOTHING = ("", "-", "--", "none", "null", "(null)", "<nil>", "nil", "nan", "n/a", "undefined")
"""Texts that programs write where there is none, in any case of letters."""


def clean(text: Value) -> Value:
    """Give a text of a log bounded, and null where it says nothing."""
    short = text.substr(0, 256)
    return ibis.ifelse(short.strip().lower().isin(SAYS_NOTHING), ibis.null("string"), short)


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
        "no_zone": (NO_ZONE, (bad & NO_ZONE_BIT) != 0),
        "day_only": (DAY_ONLY, (bad & DAY_ONLY_BIT) != 0),
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
    whole = (source["bad"] & ROW_BITS) != 0
    for name, (_words, flag) in _oddities(source, bounds).items():
        if not name.startswith(("unreadable_", "no_zone", "day_only")):
            whole = whole | flag.fill_null(False)
    return whole


def _may_be_odd(sources: Sources, bounds: Bounds) -> bool:
    """Tell by the least and the greatest values of the files whether any row can be odd."""
    limits = {
        "prompt_tokens": (1, LENGTH_MAX),
        "completion_tokens": (0, None),
        "status": (100, 599),
        "ttft_ms": (0, None),
        "duration_ms": (0, None),
        "body_bytes": (0, None),
        "bad": (0, 0),
        "started": (TIME_MIN, bounds.now),
    }
    if sources.ranges is None:
        return True
    for name, (low, high) in limits.items():
        for least, most in sources.ranges.get(name, ()):
            if (low is not None and least < low) or (high is not None and most > high):
                return True
    return False


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
        rows = rows_of(counted)
    return {
        row["source_file"]: tuple(
            Trouble(name, int(row[name]), kinds[name][0], row[f"first_{name}"]) for name in kinds if row[name]
        )
        for row in rows
    }
