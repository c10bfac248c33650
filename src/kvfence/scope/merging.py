"""Which rows are one request: the same line twice, a retry after a refusal, and the halves that two logs have of it.

An id is a client's to choose, so it is believed only together with its account, the prompt's length and the time: rows
of other lengths are other requests, and so are answers that one file has at different times. What one row leaves out is
taken from the others of its request where those agree; the worst class holds.
"""

from typing import Any

import ibis

from kvfence.scope.classes import rank_of
from kvfence.scope.relation import Duplicates
from kvfence.scope.store import Store, number_of, rows_of
from kvfence.scope.survey import LENGTH_MAX, TIME_MIN, clean, was_refused
from kvfence.scope.values import Value

RETRY_S = 3600
"""A row that follows the one before of its id by more is no retry of it."""
HALVES_S = 5
"""Two logs of one answer differ by no more than this and the time it took."""
RAN_MS_MAX = 6 * 3600 * 1000
ZONE_US, ZONES_US = 900_000_000, 15 * 3600 * 1_000_000
"""Time zones lie quarters of an hour apart, and no two further than this."""
_TEXTS = ("account", "model", "replica", "worker", "release")
_OF_ANSWERS = ("replica", "worker", "release", "completion_tokens", "status", "ttft_ms", "duration_ms", "started")
"""What a refused try says of these is not what its retry had."""
_OF_ANY = ("account", "model", "tokens", "body_bytes")
_SAME_ID = ("ident", "who")
_SAME = (*_SAME_ID, "run", "of_length", "answer", "part")


@ibis.udf.scalar.builtin(name="epoch_us", signature=(("timestamp(6)",), "int64"))  # type: ignore[untyped-decorator]
def _us(time: Value) -> Value: ...


def row_key(rows: Any) -> Value:
    """Give a text that tells a log's rows apart: the place where there is one, else all that it says."""
    said = [
        rows[name].cast("string").fill_null("")
        for name in ("request_id", "account", "started", "prompt_tokens", "completion_tokens", "status")
    ]
    values = said[0]
    for each in said[1:]:
        values = values + "\x1f" + each
    place = rows["source_file"] + ":" + rows["source_line"].cast("string")
    return ibis.coalesce(place, rows["source_file"] + "\x1f" + values)


def prepared(store: Store, candidates: Any) -> Any:
    """Give the candidates with believed values, a request id each, and the number of the request they belong to."""
    rows = store.keep("with_ids", _believed(candidates))
    by_id = ibis.window(group_by="ident")
    one_account = _agree(rows["account"], by_id)
    rows = rows.mutate(
        who=ibis.ifelse(one_account, "", ibis.coalesce(rows["account"], "")),
        shared=~one_account,
        bearers=rows.count().over(by_id),
    )
    rows = store.keep("with_who", rows)
    alone = rows.filter(rows["bearers"] == 1)
    alone = alone.mutate(most_tokens=alone["tokens"], one=alone["number"])
    several = rows.filter(rows["bearers"] > 1)
    if number_of(several.count()) == 0:
        return store.keep("prepared", alone)
    several = _filled(_numbered(store, several))
    return store.keep("prepared", ibis.union(alone, several.select(*alone.columns)))


def _believed(candidates: Any) -> Any:
    length = candidates["prompt_tokens"]
    believed = (length > 0) & (length <= LENGTH_MAX)
    line = candidates["source_line"].cast("string")
    number = ibis.row_number()
    where = candidates["source_file"] + ":" + ibis.coalesce(line, "row " + number.cast("string"))
    named = clean(candidates["request_id"])
    body, started = candidates["body_bytes"], candidates["started"]
    return candidates.mutate(
        tokens=ibis.ifelse(believed, length, ibis.null("int64")),
        absurd=(length.notnull() & ~believed) | ((candidates["bad"] & 1) != 0),
        body_bytes=ibis.ifelse(body > 0, body, ibis.null("int64")),
        started=ibis.ifelse(started >= TIME_MIN, started, ibis.null("timestamp(6)")),
        has_id=named.notnull(),
        ident=ibis.ifelse(named.notnull(), "id " + candidates["request_id"], "at " + where),
        request_id=ibis.coalesce(named, where),
        row_key=row_key(candidates),
        number=number,
        **{name: clean(candidates[name]) for name in _TEXTS},
    )


def _agree(value: Value, window: Any) -> Value:
    least, most = value.min().over(window), value.max().over(window)
    return (least == most).fill_null(True)


# ---- which rows are one


def _numbered(store: Store, rows: Any) -> Any:
    """Number the requests that rows of one id and account belong to."""
    rows = store.keep("with_runs", _with_runs(rows))
    rows = store.keep("with_lengths", _with_lengths(rows))
    rows = store.keep("with_answers", _with_answers(rows))
    same = ibis.window(group_by=list(_SAME))
    return rows.mutate(one=rows["number"].min().over(same))


def _with_runs(rows: Any) -> Any:
    """Cut the rows of an id where an hour lies between two of them; a clock in another zone is seen through."""
    order = ibis.window(group_by=list(_SAME_ID), order_by=["started", "source_file", "source_line"])
    before = rows["started"].lag().over(order)
    gap_us = _us(rows["started"]) - _us(before)
    alike = _same(rows["tokens"], order) & _same(rows["completion_tokens"], order) & _same(rows["status"], order)
    # To the microsecond, and not on the second, where everything that is started by a clock would lie too.
    exact = (gap_us % ZONE_US == 0) & (gap_us > 0) & (gap_us <= ZONES_US) & (_us(rows["started"]) % 1_000_000 != 0)
    other = rows["source_file"] != rows["source_file"].lag().over(order)
    echo = (alike & exact & other).fill_null(False)
    apart = ((gap_us > RETRY_S * 1_000_000) & ~echo).fill_null(False).cast("int64")
    rows = rows.mutate(at=ibis.ifelse(echo, before, rows["started"]), apart=apart)
    running = ibis.window(group_by=list(_SAME_ID), order_by=["started", "source_file", "source_line"], following=0)
    return rows.mutate(run=rows["apart"].sum().over(running))


def _with_lengths(rows: Any) -> Any:
    """Tell rows of other lengths apart; beside several lengths a row without one is none of them."""
    length = ibis.ifelse(rows["tokens"] > 1, rows["tokens"], ibis.null("int64"))
    together = ibis.window(group_by=[*_SAME_ID, "run"])
    alone = ibis.coalesce(length, -1 - rows["number"])
    return rows.mutate(of_length=ibis.ifelse(_agree(length, together), 0, alone), refused=was_refused(rows))


def _with_answers(rows: Any) -> Any:
    """Number the answers to prompts of one length: each file's first is one with the other files' first, and so on.

    Only where they lie as near as two logs of one answer do. Refusals go with the first.
    """
    place = [*_SAME_ID, "run", "of_length", "refused"]
    rows = rows.mutate(timed=rows["at"].notnull(), has_length=(rows["tokens"] > 1).fill_null(False))
    file = [*place, "source_file", "has_length"]
    # An export made twice says all the same of an answer; two answers of one second do not.
    own = ibis.window(group_by=[*file, "timed"], order_by=["at", "completion_tokens", "duration_ms"])
    untimed = ibis.window(group_by=[*file, "timed"], order_by=["source_line", "number"])
    num_timed = rows["timed"].sum().over(ibis.window(group_by=file))
    rows = rows.mutate(
        timed_turn=ibis.dense_rank().over(own), untimed_turn=ibis.row_number().over(untimed), num=num_timed
    )
    rows = rows.mutate(turn=ibis.ifelse(rows["timed"], rows["timed_turn"], rows["num"] + rows["untimed_turn"]))
    at_once = ibis.window(group_by=[*place, "at", "completion_tokens", "duration_ms"])
    answer = ibis.ifelse(rows["timed"], rows["turn"].max().over(at_once), rows["turn"])
    rows = rows.mutate(answer=ibis.ifelse(rows["refused"], 0, answer))
    order = ibis.window(group_by=[*place, "answer"], order_by=["at", "source_file", "source_line"])
    ran = rows["duration_ms"]
    ran_ms = ibis.ifelse(ran.between(0, RAN_MS_MAX), ran, ibis.null("float64"))
    rows = rows.mutate(ran_ms=ran_ms, before=rows["at"].lag().over(order))
    took_ms = ibis.coalesce(rows["ran_ms"].lag().over(order), rows["ran_ms"], 0.0)
    far = (_us(rows["at"]) - _us(rows["before"])) > (took_ms + HALVES_S * 1000) * 1000
    rows = rows.mutate(far=(far & ~rows["refused"]).fill_null(False).cast("int64"))
    running = ibis.window(group_by=[*place, "answer"], order_by=["at", "source_file", "source_line"], following=0)
    return rows.mutate(part=rows["far"].sum().over(running))


def _same(value: Value, order: Any) -> Value:
    before = value.lag().over(order)
    return (value == before).fill_null(False)


def _filled(rows: Any) -> Any:
    """Take what a row leaves out from the other rows of its request, where those agree."""
    same = ibis.window(group_by="one")
    filled = {}
    for name in (*_OF_ANY, *_OF_ANSWERS):
        nothing = ibis.null(rows[name].type())
        said = rows[name] if name in _OF_ANY else ibis.ifelse(rows["refused"], nothing, rows[name])
        least, most = said.min().over(same), said.max().over(same)
        filled[name] = ibis.coalesce(rows[name], ibis.ifelse(least == most, least, nothing))
    filled["most_tokens"] = rows["tokens"].max().over(same)
    return rows.mutate(**filled)


def merged(store: Store, judged: Any) -> tuple[Any, Duplicates]:
    """Leave one row a request, that of the worst class, and count what was left out."""
    order = ibis.window(
        group_by="one",
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
    counts = rows_of(left.aggregate(same=left["is_same"].sum(), retried=(~left["is_same"]).sum()))[0]
    shared = number_of(rows.filter(rows["shared"])["request_id"].nunique())
    kept = rows.filter(rows["place"] == 0)
    reused = kept.aggregate(rows=kept.count(), ids=(kept["ident"] + "\x1f" + kept["who"]).nunique())
    several = rows_of(reused)[0]
    return kept, Duplicates(
        int(counts["same"] or 0), int(counts["retried"] or 0), int(shared or 0), reused=several["rows"] - several["ids"]
    )
