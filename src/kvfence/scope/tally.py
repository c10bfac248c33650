"""Adds up: classes of all requests, those kept one by one and the plainly clear ones that are only counted.

A request is counted once. Read ``relate.py`` first.
"""

from collections.abc import Mapping
from typing import Any

import ibis

from kvfence.scope.classes import Judgement, class_of, intervals_of
from kvfence.scope.exclusions import Exclusions
from kvfence.scope.relation import CLASS_OF_REASON, CLASSIFIED_COLUMNS, Class
from kvfence.scope.store import Store
from kvfence.scope.survey import Bounds, Survey, clean
from kvfence.scope.values import Value

_EXCLUDED_AS = {
    str(Class.AFFECTED): "excluded_affected",
    str(Class.LIKELY): "excluded_likely",
    str(Class.POSSIBLE_VICTIM): "excluded_victim",
    str(Class.UNKNOWN): "excluded_unknown",
}


@ibis.udf.scalar.builtin(name="hash", signature=(("string", "string", "timestamp(6)"), "uint64"))  # type: ignore[untyped-decorator]
def _hash(request_id: Value, account: Value, started: Value) -> Value: ...


def by_reason(rows: Any) -> dict[str, int]:
    """Count rows by their reason; rows without one are not counted."""
    counted = rows.filter(rows["reason"].notnull()).group_by("reason").aggregate(rows=lambda t: t.count())
    return {row["reason"]: row["rows"] for row in counted.to_pyarrow().to_pylist()}


def by_class(reasons: Mapping[str, int]) -> dict[str, int]:
    """Sum counts by reason to counts by class; every class is there."""
    found = {str(each): 0 for each in Class}
    for reason, count in reasons.items():
        found[str(CLASS_OF_REASON[reason])] += count
    return found


def excluded(store: Store, judged: Any, exclusions: Exclusions) -> Any:
    """Take what is on the lists of exclusions out of its class, which is kept as ``would_be``."""
    judged = judged.mutate(would_be=judged["class"])
    if not exclusions.accounts and not exclusions.requests:
        return judged
    accounts = _list(store, "excluded_accounts", exclusions.accounts)
    requests = _list(store, "excluded_requests", exclusions.requests)
    listed = judged["account"].isin(accounts["name"]) | judged["request_id"].isin(requests["name"])
    instead = ibis.cases(
        *((judged["would_be"] == found, code) for found, code in _EXCLUDED_AS.items()), else_=judged["reason"]
    )
    judged = judged.mutate(reason=ibis.ifelse(listed.fill_null(False), instead, judged["reason"]))
    return judged.mutate(**{"class": class_of(judged["reason"])})


def _list(store: Store, name: str, entries: tuple[str, ...]) -> Any:
    return store.hold(name, [{"name": entry} for entry in entries], {"name": "string"})


def with_victims(store: Store, one_each: Any, found: Any) -> tuple[Any, Any]:
    """Give the requests with those whose pages could have been read, and the rows of the latter that are new here."""
    line = found["source_line"].cast("string")
    named = found.mutate(
        request_id=ibis.coalesce(clean(found["request_id"]), found["source_file"] + ":" + ibis.coalesce(line, "?")),
        **{name: clean(found[name]) for name in ("account", "model", "replica", "worker", "release")},
    )
    order = ibis.window(group_by=["request_id", "account"], order_by=["started", "source_file", "source_line"])
    each = named.mutate(place=ibis.row_number().over(order))
    each = store.keep("each_victim", each.filter(each["place"] == 0))
    hits = each.group_by("request_id").aggregate(hits=each["victim_of"].max())
    known = one_each.left_join(hits, "request_id")
    known = known.drop("request_id_right").mutate(victim_of=known["hits"].fill_null(0))
    is_victim = (known["victim_of"] > 0) & known["class"].isin([str(Class.CLEAR), str(Class.UNKNOWN)])
    is_victim = is_victim & (known["reason"] != "refused")
    known = known.mutate(
        reason=ibis.ifelse(is_victim, "in_read_window", known["reason"]),
        would_be=ibis.ifelse(is_victim, str(Class.POSSIBLE_VICTIM), known["would_be"]),
    )
    known = known.mutate(**{"class": class_of(known["reason"])})
    new = store.keep("new_victims", each.anti_join(one_each, "request_id"))
    added = new.mutate(
        reason=ibis.literal("in_read_window"),
        would_be=ibis.literal(str(Class.POSSIBLE_VICTIM)),
        **{"class": ibis.literal(str(Class.POSSIBLE_VICTIM))},
    )
    return store.keep("with_victims", ibis.union(shaped(known), shaped(added))), new


def shaped(rows: Any) -> Any:
    """Give rows the columns of ``CLASSIFIED_COLUMNS``, null where they have none."""
    columns = {
        name: (rows[name] if name in rows.columns else ibis.null(dtype)).cast(dtype)
        for name, dtype in CLASSIFIED_COLUMNS.items()
    }
    if "tokens" in rows.columns:
        columns["prompt_tokens"] = ibis.coalesce(rows["tokens"], rows["prompt_tokens"])
    return rows.select(**columns)


def plain_duplicates(store: Store, source: Any, taken: Any, bounds: Bounds) -> int:
    """Count the plainly clear rows, not taken out, that say what another one of them says."""
    rows = source.filter(source["prompt_tokens"].between(2, bounds.long - 1) & source["request_id"].notnull())
    twins = taken.filter(taken["request_id"].notnull()).select("request_id").distinct()
    rows = rows.anti_join(twins, "request_id")
    counted = rows.aggregate(
        rows=rows.count(), distinct=_hash(rows["request_id"], rows["account"], rows["started"]).nunique()
    )
    with store.watching("comparing what is plainly clear"):
        row = counted.to_pyarrow().to_pylist()[0]
    return int(row["rows"] or 0) - int(row["distinct"] or 0)


def add_plain(reasons: dict[str, int], seen: Survey, taken: Mapping[str, int], less: Mapping[str, int]) -> None:
    """Add the plainly clear rows that were not taken out."""
    for reason, count in seen.plain.items():
        rest = count - taken.get(reason, 0) - less.get(reason, 0)
        reasons[reason] = reasons.get(reason, 0) + max(rest, 0)
    if seen.lost:
        reasons["no_length"] = reasons.get("no_length", 0) + seen.lost


def move_uncovered(store: Store, reasons: dict[str, int], judgement: Judgement) -> int:
    """Count short requests as UNKNOWN where neither the history nor ``--pool`` says which pool served them."""
    if judgement.pool is not None or not judgement.history.given:
        return 0
    table = [
        {"m": each.model, "r": each.replica, "w": worker, "s": each.start, "e": each.end}
        for each in intervals_of(judgement)
        if each.pool is not None
        for worker in each.workers or (None,)
    ]
    schema = {"m": "string", "r": "string", "w": "string", "s": "timestamp(6)", "e": "timestamp(6)"}
    known = store.hold("covered", table, schema)
    places, kept = store.ibis.table("places_raw"), store.ibis.table("candidates")
    hours = kept.mutate(hour=kept["started"].truncate("h"))
    inside = _uncovered(places, known)["requests"].sum().to_pyarrow().as_py() or 0
    looked_at = _uncovered(hours, known).count().to_pyarrow().as_py()
    moved = max(0, min(int(inside) - int(looked_at), reasons.get("fits", 0)))
    if moved:
        reasons["fits"] -= moved
        reasons["no_pool"] = reasons.get("no_pool", 0) + moved
    return moved


def _uncovered(rows: Any, known: Any) -> Any:
    """Leave the rows of hours and places that no interval with a pool covers."""
    hour = rows["hour"]
    match = [
        known[short].isnull() | rows[name].isnull() | (known[short] == rows[name])
        for short, name in (("m", "model"), ("r", "replica"), ("w", "worker"))
    ]
    match += [
        known["s"].isnull() | hour.isnull() | (hour + ibis.interval(hours=1) > known["s"]),
        known["e"].isnull() | hour.isnull() | (hour < known["e"]),
    ]
    return rows.anti_join(known, match)
