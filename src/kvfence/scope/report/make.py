"""Puts a report together from what the engine found.

Read next: ``document.py`` for its shape, ``html.py``, ``table.py`` and ``csv.py`` for its forms.
"""

from collections.abc import Mapping
from datetime import datetime
from math import ceil, floor, log2
from typing import Any

import ibis
from msgspec import convert as converted
from msgspec import structs, to_builtins

from kvfence import __version__
from kvfence.evidence.visible import plain
from kvfence.scope.relation import CLASS_OF_REASON, REASONS, Class, Relation
from kvfence.scope.report.behaviour import behaviour
from kvfence.scope.report.document import (
    ACCOUNTS_MAX,
    IDS_MAX,
    SCHEMA,
    TOLD_MAX,
    AccountLine,
    Bar,
    Document,
    Ids,
    Line,
    ModelLine,
    Period,
    Reason,
    Tally,
    Told,
)
from kvfence.scope.report.exposure import exposed_models, exposure
from kvfence.scope.report.pseudonyms import Pseudonyms
from kvfence.scope.report.tables import FIELD_OF_CLASS, Counted, by_account, by_day, by_model, by_replica
from kvfence.scope.store import rows_of


def make_document(relation: Relation, key: bytes | None) -> Document:
    """Put a report together; the same relation gives the same document. key: of pseudonyms, None writes names."""
    names = Pseudonyms(key)
    models = _models(relation)
    accounts, left_out = _accounts(relation, names)
    counts = {field: relation.counts.get(str(klass), 0) for klass, field in FIELD_OF_CLASS.items()}
    start, end = relation.window
    made = Document(
        schema=SCHEMA,
        kvfence=__version__,
        as_of=_last(relation),
        clear=relation.counts.get(str(Class.CLEAR), 0),
        requests=sum(relation.counts.values()),
        period=Period(moment(start), moment(end), relation.window_given),
        pool=relation.pool,
        context=relation.context,
        long_tokens=relation.long_tokens,
        names=names.names,
        reasons=_reasons(relation.reasons),
        models=models,
        days=_lines(by_day(relation)),
        replicas=_lines(by_replica(relation)),
        accounts=accounts,
        accounts_left_out=left_out,
        lengths=_lengths(relation, models),
        behaviour=behaviour(relation, names),
        history=relation.history.intervals,
        history_given=relation.history.given,
        readings=tuple(structs.replace(each, lines=None, bytes=None) for each in relation.readings),
        duplicates=relation.duplicates,
        troubles=relation.skews,
        assumptions=relation.assumptions,
        possible_victims_also_unknown=relation.victims_also_unknown,
        **counts,
    )
    return converted(_visible(to_builtins(made)), Document)


def _last(relation: Relation) -> str | None:
    """Give the time of the last request: as ``--as-of`` it gives this report again when the logs have grown."""
    (row,) = rows_of(relation.accounts.aggregate(last=relation.accounts["last"].max()))
    return None if row["last"] is None else row["last"].isoformat(timespec="microseconds") + "Z"


def moment(value: datetime | None) -> str | None:
    """Write a moment in UTC."""
    return None if value is None else value.strftime("%Y-%m-%dT%H:%M:%S") + "Z"


def _visible(value: Any) -> Any:
    """Make every text visible: what is hidden in a log must not hide in a report."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {key: _visible(each) for key, each in value.items()}
    return [_visible(each) for each in value] if isinstance(value, list | tuple) else value


def _reasons(counted: Mapping[str, int]) -> tuple[Reason, ...]:
    """Give the reasons that occurred, in the order in which they are documented."""
    found = [(code, text) for code, text in REASONS.items() if counted.get(code)]
    return tuple(Reason(code, str(CLASS_OF_REASON[code]), counted[code], text) for code, text in found)


def _lines(counted: Mapping[str | None, Counted]) -> tuple[Line, ...]:
    return tuple(Line(name, each.tally, each.longest) for name, each in counted.items())


def _models(relation: Relation) -> tuple[ModelLine, ...]:
    lines = []
    for name, each in by_model(relation).items():
        found = exposure(relation, name, each.tally.affected)
        lines.append(ModelLine(name, found.verdict, found.why, each.tally, each.longest))
    return tuple(lines)


def _accounts(relation: Relation, names: Pseudonyms) -> tuple[tuple[AccountLine, ...], int]:
    """Give accounts, the most affected first. Those without a finding are bounded."""
    classes, ids, told = by_account(relation), _ids(relation, names), _told(relation)
    lines = []
    for row in rows_of(relation.accounts):
        found = classes.get(row["account"], Tally())
        tally = structs.replace(found, requests=int(row["requests"]), long=int(row["long_requests"]))
        spent = (row["longest_prompt"], moment(row["first"]), moment(row["last"]))
        own = (ids.get(row["account"], Ids()), told.get(row["account"], ()))
        lines.append(AccountLine(names.account(row["account"]), tally, *spent, *own))
    lines.sort(key=_rank)
    return tuple(lines[:ACCOUNTS_MAX]), len(lines[ACCOUNTS_MAX:])


def _rank(line: AccountLine) -> tuple[int, int, int, int, int, bool, str]:
    tally = line.tally
    found = (-tally.affected, -tally.likely, -tally.unknown, -tally.possible_victims, -tally.long)
    return (*found, line.name is None, line.name or "")


def _ids(relation: Relation, names: Pseudonyms) -> dict[str | None, Ids]:
    """Give the request ids of everything that is not CLEAR, by account; the worst classes first, up to the bound."""
    table, room = relation.classified, IDS_MAX
    ids: dict[str | None, Ids] = {}
    for klass, field in FIELD_OF_CLASS.items():
        chosen = table.filter(table["class"] == str(klass)).select("account", "request_id", "started")
        rows = rows_of(chosen.order_by(chosen["started"].asc(nulls_first=False), "request_id").limit(room))
        room -= len(rows)
        found: dict[str | None, list[str]] = {}
        for row in rows:
            found.setdefault(row["account"], []).append(names.request(row["request_id"]))
        for account, own in found.items():
            ids[account] = structs.replace(ids.get(account, Ids()), **{field: tuple(own)})
    return _with_left_out(ids, by_account(relation))


def _told(relation: Relation) -> dict[str | None, tuple[Told, ...]]:
    """Give what a customer can recognise its requests by, of each account the first of each class."""
    table = relation.classified
    classes = [str(klass) for klass in FIELD_OF_CLASS if klass is not Class.EXCLUDED]
    own = ibis.window(
        group_by=["account", "class"],
        order_by=[table["started"].asc(nulls_first=False), "request_id", "source_file", "source_line"],
    )
    rows = table.filter(table["class"].isin(classes)).mutate(turn=ibis.row_number().over(own))
    chosen = rows.filter(rows["turn"] < TOLD_MAX).select(
        "account", "class", "started", "prompt_tokens", "model", "turn"
    )
    found: dict[str | None, list[Told]] = {}
    bounded = chosen.order_by("account", "class", "turn").limit(IDS_MAX)
    for row in sorted(rows_of(bounded), key=lambda row: (classes.index(row["class"]), row["turn"])):
        told = Told(row["class"], moment(row["started"]), row["prompt_tokens"], row["model"])
        found.setdefault(row["account"], []).append(told)
    return {account: tuple(told) for account, told in found.items()}


def _with_left_out(ids: dict[str | None, Ids], tallies: Mapping[str | None, Tally]) -> dict[str | None, Ids]:
    """Say of each account how many of its ids found no room."""
    complete = {}
    for account, tally in tallies.items():
        own = ids.get(account, Ids())
        missing = sum(getattr(tally, field) - len(getattr(own, field)) for field in FIELD_OF_CLASS.values())
        complete[account] = structs.replace(own, left_out=missing)
    return complete


def _lengths(relation: Relation, models: tuple[ModelLine, ...]) -> tuple[Bar, ...]:
    """Give the histogram of prompt lengths of the models in reach; of all models where none is."""
    reach = exposed_models((line.name, line.verdict) for line in models)
    counts: dict[int, list[int]] = {}
    for row in rows_of(relation.lengths):
        if (row["model"] in reach or not reach) and row["bucket"] is not None:
            counts.setdefault(int(row["bucket"]), [0, 0])[0] += int(row["requests"])
    table = relation.classified
    affected = table.filter(table["class"] == str(Class.AFFECTED)).select("prompt_tokens")
    for row in rows_of(affected.group_by("prompt_tokens").agg(n=affected.count())):
        bucket = floor(4 * log2(max(row["prompt_tokens"] or 1, 1)))
        counts.setdefault(bucket, [0, 0])[1] += int(row["n"])
    bounds = range(min(counts), max(counts) + 1) if counts else range(0)
    return tuple(
        Bar(ceil(2 ** (bucket / 4)), ceil(2 ** ((bucket + 1) / 4)), *counts.get(bucket, (0, 0))) for bucket in bounds
    )
