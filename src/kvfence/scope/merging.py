"""Which rows are one request: the same line twice, a retry, and the two halves that gateway and engine logged.

Rows of one id and account are one request where they lie within an hour, or are alike but for a clock set to another
time zone. What one row leaves out is taken from the others where those agree; the worst class holds.
"""

from typing import Any

import ibis

from kvfence.scope.classes import rank_of
from kvfence.scope.relation import Duplicates
from kvfence.scope.store import Store
from kvfence.scope.survey import LENGTH_MAX, TIME_MIN, clean
from kvfence.scope.values import Value

RETRY_S = 3600
ZONE_S = 15 * 3600
"""No two time zones lie further apart."""
_TEXTS = ("account", "model", "replica", "worker", "release")
_FILLED = (*_TEXTS, "tokens", "completion_tokens", "status", "ttft_ms", "duration_ms", "body_bytes", "started")


def prepared(store: Store, candidates: Any) -> Any:
    """Give the candidates with believed values, a request id each, and a key that rows of one request share."""
    length = candidates["prompt_tokens"]
    believed = (length > 0) & (length <= LENGTH_MAX)
    line = candidates["source_line"].cast("string")
    where = candidates["source_file"] + ":" + ibis.coalesce(line, "row " + ibis.row_number().cast("string"))
    named = clean(candidates["request_id"])
    body, started = candidates["body_bytes"], candidates["started"]
    rows = candidates.mutate(
        tokens=ibis.ifelse(believed, length, ibis.null("int64")),
        absurd=(length.notnull() & ~believed) | ((candidates["bad"] & 1) != 0),
        body_bytes=ibis.ifelse(body >= 0, body, ibis.null("int64")),
        started=ibis.ifelse(started >= TIME_MIN, started, ibis.null("timestamp(6)")),
        has_id=named.notnull(),
        request_id=ibis.coalesce(named, where),
        **{name: clean(candidates[name]) for name in _TEXTS},
    )
    rows = store.keep("with_ids", rows)
    by_id = ibis.window(group_by="request_id")
    one_account = _agree(rows["account"], by_id)
    rows = rows.mutate(
        who=ibis.ifelse(one_account, "", ibis.coalesce(rows["account"], "")),
        shared=~one_account,
    )
    return store.keep("prepared", _filled(_with_key(rows)))


def _agree(value: Value, window: Any) -> Value:
    least, most = value.min().over(window), value.max().over(window)
    return (least == most).fill_null(True)


def _with_key(rows: Any) -> Any:
    """Number the requests that rows of one id and account belong to."""
    order = ibis.window(group_by=["request_id", "who"], order_by=["started", "source_file", "source_line"])
    before = rows["started"].lag().over(order)
    gap = rows["started"].epoch_seconds() - before.epoch_seconds()
    alike = _same(rows["tokens"], order) & _same(rows["completion_tokens"], order) & _same(rows["status"], order)
    apart = (gap > RETRY_S) & ~(alike & (gap <= ZONE_S))
    rows = rows.mutate(gap=gap, apart=apart.fill_null(False).cast("int64"))
    running = ibis.window(
        group_by=["request_id", "who"], order_by=["started", "source_file", "source_line"], following=0
    )
    return rows.mutate(turn=rows["apart"].sum().over(running))


def _same(value: Value, order: Any) -> Value:
    before = value.lag().over(order)
    return (value == before).fill_null(False)


def _filled(rows: Any) -> Any:
    """Take what a row leaves out from the other rows of its request, where those agree."""
    same = ibis.window(group_by=["request_id", "who", "turn"])
    filled = {}
    for name in _FILLED:
        least, most = rows[name].min().over(same), rows[name].max().over(same)
        filled[name] = ibis.coalesce(rows[name], ibis.ifelse(least == most, least, ibis.null(rows[name].type())))
    filled["most_tokens"] = rows["tokens"].max().over(same)
    return rows.mutate(**filled)


def merged(store: Store, judged: Any) -> tuple[Any, Duplicates]:
    """Leave one row a request, that of the worst class, and count what was left out."""
    order = ibis.window(
        group_by=["request_id", "who", "turn"],
        order_by=[rank_of(judged["class"]), judged["started"], judged["source_file"], judged["source_line"]],
    )
    alike = [
        (judged[name] == judged[name].first().over(order)) | judged[name].isnull()
        for name in ("started", "status", "tokens", "completion_tokens")
    ]
    rows = judged.mutate(
        place=ibis.row_number().over(order), is_same=(alike[0] & alike[1] & alike[2] & alike[3]).fill_null(False)
    )
    rows = store.keep("ranked", rows)
    left = rows.filter(rows["place"] > 0)
    counts = left.aggregate(same=left["is_same"].sum(), retried=(~left["is_same"]).sum()).to_pyarrow().to_pylist()[0]
    shared = rows.filter(rows["shared"])["request_id"].nunique().to_pyarrow().as_py()
    kept = rows.filter(rows["place"] == 0)
    return kept, Duplicates(int(counts["same"] or 0), int(counts["retried"] or 0), int(shared or 0))
