"""Whose pages could have been read: requests that finished on the decode worker shortly before an affected answer.

An affected answer read pages that earlier requests had left. Pages are taken to be re-used in the order in which they
were freed, so that what lies in free pages is at most the last ``decode_pool`` tokens that finished on that worker;
where the size is not known, a time bounds it. Neither proves that a page was read: the class says *possible*.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import ibis
from msgspec import Struct

from kvfence.scope.relation import REQUEST_COLUMNS, Class
from kvfence.scope.store import Store
from kvfence.scope.survey import clean, length_of, was_refused
from kvfence.scope.values import Value

HORIZON_S = 3600
"""Seconds back from an affected answer where the size of decode's pool is not known."""
HORIZON_WITH_POOL_S = 24 * 3600
"""Seconds back at most where it is known: then the pool's turnover bounds it sooner on any busy worker."""
ROUND_GROWTH = 4
ROUNDS_MAX = 8
ANSWERS_MAX = 20_000
_SLACK_S = 6 * 3600
"""No request runs longer: a row that started earlier cannot have finished within a window."""
NOWHERE = "(not logged)"
_CARRIED = (*REQUEST_COLUMNS, "bad", "source_file", "source_line")


class Reach(Struct, frozen=True):
    """How far back pages are looked for. Units: horizon_s: seconds, None: by what is known; decode_pool: tokens."""

    horizon_s: float | None = None
    decode_pool: int | None = None


class Window(Struct, frozen=True):
    """One affected answer and the time in which pages that it read were freed. tokens: decode's pool; 0: not known."""

    place: str
    start: datetime
    end: datetime
    request_id: str
    tokens: int


def place_of(rows: Any) -> Value:
    """Give where a request decoded, as exactly as it was logged: the worker, else the replica, else the model."""
    return ibis.coalesce(clean(rows["worker"]), clean(rows["replica"]), clean(rows["model"]), NOWHERE)


def windows_of(judged: Any, reach: Reach) -> list[Window]:
    """Give the longest window of each answer that was affected, or likely so, whether excluded or not."""
    answers = judged.filter(
        judged["would_be"].isin([str(Class.AFFECTED), str(Class.LIKELY)]) & judged["started"].notnull()
    )
    ran_ms = ibis.coalesce(answers["ttft_ms"], answers["duration_ms"], 0.0)
    chosen = answers.select(
        "request_id",
        "started",
        "decode_pool",
        place=place_of(answers),
        ran_ms=ibis.ifelse(ran_ms.between(0, _SLACK_S * 1000), ran_ms, 0.0),
        since=answers["restarted"],
    )
    found = []
    for row in chosen.order_by("started", "request_id").limit(ANSWERS_MAX).to_pyarrow().to_pylist():
        tokens = reach.decode_pool or row["decode_pool"] or 0
        horizon = reach.horizon_s or (HORIZON_WITH_POOL_S if tokens else HORIZON_S)
        end = row["started"] + timedelta(milliseconds=row["ran_ms"])
        start = end - timedelta(seconds=horizon)
        if row["since"] is not None:
            start = max(start, row["since"])
        found.append(Window(row["place"], start, end, row["request_id"], tokens))
    return found


def find_victims(store: Store, source: Any, places: Any, windows: Sequence[Window]) -> tuple[Any, list[Window]]:
    """Give the rows that finished within a window and its pool's turnover, each with the number of such windows.

    Windows are first guessed from the traffic of the hour, and made longer where they hold less than the pool.
    """
    rates = _rates(places)
    spans = [_guess(window, rates) for window in windows]
    finished = _pull(store, source, windows, spans)
    for _round in range(ROUNDS_MAX):
        held = _held(store, finished, windows, spans)
        short = [
            number
            for number, window in enumerate(windows)
            if window.tokens and held.get(number, 0) < window.tokens and spans[number] > window.start
        ]
        if not short:
            break
        for number in short:
            window = windows[number]
            spans[number] = max(window.start, window.end - ROUND_GROWTH * (window.end - spans[number]))
        finished = _pull(store, source, windows, spans)
    return _within(store, finished, windows, spans), [
        Window(window.place, span, window.end, window.request_id, window.tokens)
        for window, span in zip(windows, spans, strict=True)
    ]


def _rates(places: Any) -> dict[tuple[str, datetime], float]:
    """Give tokens a second by place and hour."""
    rows = places.filter(places["hour"].notnull()).mutate(place=place_of(places))
    sums = rows.group_by("place", "hour").aggregate(tokens=(rows["prompt_tokens"] + rows["completion_tokens"]).sum())
    return {(row["place"], row["hour"]): float(row["tokens"] or 0) / 3600 for row in sums.to_pyarrow().to_pylist()}


def _guess(window: Window, rates: dict[tuple[str, datetime], float]) -> datetime:
    """Guess from when on a window holds twice the pool."""
    if not window.tokens:
        return window.start
    hour = window.end.replace(minute=0, second=0, microsecond=0)
    rate = max(rates.get((window.place, hour), 0.0), rates.get((window.place, hour - timedelta(hours=1)), 0.0))
    seconds = 2 * window.tokens / rate if rate > 0 else 3600.0
    return max(window.start, window.end - timedelta(seconds=min(max(seconds, 60.0), 86400.0)))


def _finished(rows: Any) -> Value:
    ran = ibis.coalesce(rows["duration_ms"], 0.0)
    ran = ibis.ifelse(ran.between(0, _SLACK_S * 1000), ran, 0.0)
    return rows["started"] + (ran * 1000).cast("int64").as_interval("us")


def _pull(store: Store, source: Any, windows: Sequence[Window], spans: Sequence[datetime]) -> Any:
    """Keep the rows that finished in a minute of any window, wherever they decoded."""
    wanted = _minutes(windows, spans)
    first = min(spans) - timedelta(seconds=_SLACK_S)
    last = max(window.end for window in windows)
    rows = source.filter(source["started"].between(first, last))
    rows = rows.mutate(finished=_finished(rows), place=place_of(rows))
    rows = rows.filter(~was_refused(rows))
    minute = (rows["finished"].epoch_seconds() / 60).floor().cast("int64")
    if source._find_backend(use_default=True) is store.ibis:
        schema = {"minute": "int64", "place": "string"}
        listed = store.hold("minutes", [{"minute": m, "place": p} for m, p in wanted], schema)
        chosen = rows.mutate(minute=minute).semi_join(listed, ["minute", "place"])
    else:
        places = sorted({place for _minute, place in wanted})
        chosen = rows.filter(minute.isin(sorted({minute for minute, _place in wanted})) & rows["place"].isin(places))
    held = ibis.coalesce(length_of(chosen), 0) + ibis.ifelse(
        chosen["completion_tokens"] > 0, chosen["completion_tokens"], 0
    ).fill_null(0)
    answered = chosen.mutate(held=held)
    return store.keep("finished", answered, "looking for possible victims")


def _minutes(windows: Sequence[Window], spans: Sequence[datetime]) -> list[tuple[int, str]]:
    """Give each minute and place of which some window holds a part."""
    found: set[tuple[int, str]] = set()
    for window, start in zip(windows, spans, strict=True):
        first, last = (int(at.replace(tzinfo=UTC).timestamp() // 60) for at in (start, window.end))
        found |= {(minute, window.place) for minute in range(first, last + 1)}
    return sorted(found)


def _window_table(store: Store, windows: Sequence[Window], spans: Sequence[datetime]) -> Any:
    rows = [
        {
            "number": number,
            "at": each.place,
            "w_start": start,
            "w_end": each.end,
            "w_tokens": each.tokens,
            "by": each.request_id,
        }
        for number, (each, start) in enumerate(zip(windows, spans, strict=True))
    ]
    schema = {
        "number": "int64", "at": "string", "w_start": "timestamp(6)", "w_end": "timestamp(6)", "w_tokens": "int64",
        "by": "string",
    }  # fmt: skip
    return store.hold("windows", rows, schema)


def _in_windows(store: Store, finished: Any, windows: Sequence[Window], spans: Sequence[datetime]) -> Any:
    table = _window_table(store, windows, spans)
    joined = finished.inner_join(
        table,
        [
            finished["place"] == table["at"],
            finished["finished"] >= table["w_start"],
            finished["finished"] <= table["w_end"],
        ],
    )
    return joined.filter((joined["request_id"] != joined["by"]).fill_null(True))


def _held(store: Store, finished: Any, windows: Sequence[Window], spans: Sequence[datetime]) -> dict[int, int]:
    joined = _in_windows(store, finished, windows, spans)
    sums = joined.group_by("number").aggregate(total=joined["held"].sum())
    return {row["number"]: int(row["total"] or 0) for row in sums.to_pyarrow().to_pylist()}


def _within(store: Store, finished: Any, windows: Sequence[Window], spans: Sequence[datetime]) -> Any:
    """Leave, of each window, the rows after which less than the pool finished."""
    joined = _in_windows(store, finished, windows, spans)
    back = ibis.window(
        group_by="number",
        order_by=[joined["finished"].desc(), joined["source_file"], joined["source_line"]],
        following=0,
    )
    joined = joined.mutate(after=joined["held"].sum().over(back) - joined["held"])
    near = joined.filter((joined["w_tokens"] == 0) | (joined["after"] < joined["w_tokens"]))
    return store.keep("victims", near.group_by(*_CARRIED).aggregate(victim_of=near["number"].nunique()))
