"""Per model: could a prompt that its context lets through be longer than its pool? EXPOSED, UNREACHABLE or UNKNOWN.

The answer is arithmetic over the deployments' history within the period, and each sentence shows its numbers. What was
seen wins over what was told: a model with affected answers is EXPOSED whatever its history says.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct

from kvfence.scope.relation import Interval, Relation

Verdict = Literal["EXPOSED", "UNREACHABLE", "UNKNOWN"]
_WORST_FIRST: tuple[Verdict, ...] = ("EXPOSED", "UNKNOWN", "UNREACHABLE")


class Exposure(Struct, frozen=True):
    """A verdict and its sentences, the worst first."""

    verdict: Verdict
    why: tuple[str, ...]


def exposure(relation: Relation, model: str | None, affected: int) -> Exposure:
    """Judge one model."""
    judged = {judge(interval): None for interval in intervals_of(relation, model)}
    sentences = sorted(judged, key=lambda pair: (_WORST_FIRST.index(pair[0]), pair[1]))
    if affected:
        seen: tuple[Verdict, str] = ("EXPOSED", f"{affected:,} affected answers were found")
        sentences = [seen, *sentences]
    return Exposure(sentences[0][0], tuple(text for _, text in sentences))


def intervals_of(relation: Relation, model: str | None) -> Sequence[Interval]:
    """Give what served a model within the period; where the history is silent, what --pool and --context say."""
    found = [each for each in relation.history.intervals if _concerns(each, model, relation.window)]
    stated = Interval(pool=relation.pool, context=relation.context, origin="--pool")
    return [_completed(each, relation) for each in found] or [stated]


def _completed(interval: Interval, relation: Relation) -> Interval:
    """Fill in what the history does not say of a pool or a context from the command line."""
    return Interval(
        **{name: getattr(interval, name) for name in Interval.__struct_fields__}
        | {
            "pool": relation.pool if interval.pool is None else interval.pool,
            "context": relation.context if interval.context is None else interval.context,
        }
    )


def _concerns(interval: Interval, model: str | None, window: tuple[datetime | None, datetime | None]) -> bool:
    start, end = window
    begun = interval.start is None or end is None or interval.start < end
    lasting = interval.end is None or start is None or interval.end > start
    return begun and lasting and interval.model in (None, model)


def judge(interval: Interval) -> tuple[Verdict, str]:
    """Judge one deployment and say why."""
    pool, context = interval.pool, interval.context
    if interval.single:
        return "UNREACHABLE", "single node: whoever refuses also answers"
    if interval.vulnerable is False:
        return "UNREACHABLE", f"{interval.release or 'its release'} refuses rightly"
    if pool is None:
        return "UNKNOWN", "its pool is not known: give --deployments or --pool"
    if context is None:
        return "UNKNOWN", f"pool {pool:,}, but its context is not known: give --deployments or --context"
    if pool >= context:
        return _roomy(pool, context, interval)
    if interval.decode_pool is not None and interval.decode_pool <= pool:
        why = f"decode pool {interval.decode_pool:,} is no larger than the prefill pool {pool:,}: decode refuses first"
        return "UNREACHABLE", why
    most = min(context, interval.decode_pool or context)
    where = f"pool {pool:,} < context {context:,}: prompts of {pool + 1:,} to {most:,} tokens reach the fault"
    if interval.vulnerable is None:
        return "UNKNOWN", f"{where} if {interval.release or 'its release'} has the defect, which is not known"
    return "EXPOSED", where


def _roomy(pool: int, context: int, interval: Interval) -> tuple[Verdict, str]:
    if interval.margin and pool - context < interval.margin:
        least = context + interval.margin
        why = (
            f"pool {pool:,} holds the context {context:,}, but this engine refuses from {least - context} tokens below"
        )
        return "UNKNOWN", f"{why} its pool on: a pool of {least:,} would leave no doubt"
    return "UNREACHABLE", f"pool {pool:,} >= context {context:,}: no prompt that the context lets through exceeds it"


def exposed_models(verdicts: Iterable[tuple[str | None, str]]) -> tuple[str | None, ...]:
    """Give the models that are not shown to be out of reach."""
    return tuple(model for model, verdict in verdicts if verdict != "UNREACHABLE")
