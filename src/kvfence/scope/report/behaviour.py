"""Puts the question of conduct to the data and the answer into words.

Asked are the long prompts sent to models in reach while they were, all answers, without what is on the list of
exclusions. The tests stand in ``kvfence.scope.statistics``.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from msgspec import Struct

from kvfence.scope.conduct import RATE, Asked, Conduct
from kvfence.scope.relation import Class, Relation
from kvfence.scope.report.document import Behaviour, Timing
from kvfence.scope.report.pseudonyms import Pseudonyms
from kvfence.scope.statistics import MANY, conduct_of, same_times
from kvfence.scope.store import rows_of

ASKED_MAX = 500_000
"""Long prompts that are tested, the earliest: what does not fit into memory is not tested, and the words say so."""

HOURS = 3


class _Prompt(Struct, frozen=True):
    account: str | None
    at: datetime
    length: int
    over: bool


def behaviour(relation: Relation, names: Pseudonyms) -> Behaviour:
    """Test the conduct of everybody who sent long prompts while a model was in reach."""
    prompts = _prompts(relation)
    asked = _asked(prompts)
    tested = conduct_of(asked)
    timings = (_hours(prompts), _days(prompts))
    above = [prompt for prompt in prompts if prompt.over]
    senders = {prompt.account for prompt in above if prompt.account is not None}
    verdict = _verdict(tested, timings, len(above), len(prompts))
    shown = tuple(Conduct(names.account(each.account) or "", each.over, each.tests) for each in tested)
    words = [*_words(shown, timings, above, len(senders)), *_limits(prompts)]
    return Behaviour(verdict, tuple(words), timings, shown, len(senders), len(above))


def _prompts(relation: Relation) -> list[_Prompt]:
    table = relation.classified
    start, end = relation.window
    wanted = (
        (table["class"] != str(Class.EXCLUDED))
        & (table["prompt_tokens"] >= relation.long_tokens)
        & (table["pool_tokens"] < table["context_tokens"])
        & (table["prompt_tokens"] <= table["context_tokens"])
        & table["vulnerable"].fill_null(True)
        & table["started"].notnull()
    )
    if start is not None:
        wanted &= table["started"] >= start.replace(tzinfo=None)
    if end is not None:
        wanted &= table["started"] < end.replace(tzinfo=None)
    chosen = table.filter(wanted).select(
        "account",
        "started",
        "prompt_tokens",
        "request_id",
        over=table["prompt_tokens"] > table["pool_tokens"],
    )
    rows = rows_of(chosen.order_by("started", "request_id").limit(ASKED_MAX))
    return [_Prompt(row["account"], row["started"], row["prompt_tokens"], row["over"]) for row in rows]


def _asked(prompts: Sequence[_Prompt]) -> list[Asked]:
    def account(prompt: _Prompt) -> str:
        return prompt.account or ""

    found = []
    for name, group in groupby(sorted((each for each in prompts if each.account), key=account), key=account):
        own = list(group)
        times = tuple(int(each.at.replace(tzinfo=UTC).timestamp() * 1000) for each in own)
        found.append(Asked(name, times, tuple(each.length for each in own), tuple(each.over for each in own)))
    return found


def _hours(prompts: Sequence[_Prompt]) -> Timing:
    places = tuple(f"{hour:02d}-{hour + HOURS:02d}" for hour in range(0, 24, HOURS))
    return _timing("hour of the day", places, prompts, lambda at: f"{at.hour // HOURS * HOURS:02d}-", places)


def _days(prompts: Sequence[_Prompt]) -> Timing:
    places = tuple(sorted({f"{prompt.at:%Y-%m-%d}" for prompt in prompts}))
    return _timing("day", places, prompts, lambda at: f"{at:%Y-%m-%d}", places)


def _timing(
    name: str, places: tuple[str, ...], prompts: Iterable[_Prompt], place: Any, labels: Sequence[str]
) -> Timing:
    """Count an account once for each place and day: its next prompt is no news of when people work."""
    counts = [dict.fromkeys(labels, 0), dict.fromkeys(labels, 0)]
    seen = set()
    for prompt in prompts:
        label = next(each for each in labels if each.startswith(place(prompt.at)))
        once = (prompt.account, prompt.at.date(), label, prompt.over)
        if once not in seen:
            seen.add(once)
            counts[not prompt.over][label] += 1
    above, baseline = (tuple(each.values()) for each in counts)
    return Timing(name, places, above, baseline, same_times(above, baseline))


def _verdict(tested: Sequence[Conduct], timings: Sequence[Timing], above: int, prompts: int) -> str:
    if any(each.named for each in tested):
        return "probing"
    known = [timing.p for timing in timings if timing.p is not None]
    if not above or above == prompts or not known:
        return "unknown"
    return "differs" if min(known) * len(known) <= RATE else "ordinary"


def _words(
    tested: Sequence[Conduct], timings: Sequence[Timing], above: Sequence[_Prompt], senders: int
) -> Iterable[str]:
    if not above:
        yield "No prompt above the limit was found, so there is no conduct to judge."
        return
    yield f"{len(above):,} prompts above the limit came from {senders:,} accounts."
    for each in tested:
        for test in each.tests:
            if test.found:
                said = f"{test.name} ({test.observed}; corrected p {said_of(test.adjusted)})"
                yield f"{each.account} is unlike the others: {said}."
    known = [test.adjusted for each in tested for test in each.tests if test.adjusted is not None]
    if known and min(known) > RATE:
        yield (
            f"Of the {len(tested)} accounts with {MANY} or more, none differs from the other senders of long prompts "
            f"(smallest corrected p {said_of(min(known))})."
        )
    elif not tested:
        yield f"No account sent {MANY} or more: nobody tried it often."
    yield from _said_of_timings(timings)


def _said_of_timings(timings: Sequence[Timing]) -> Iterable[str]:
    for timing in timings:
        if timing.p is None:
            yield f"By {timing.name} nothing can be said: too little to compare."
        elif timing.p * len(timings) <= RATE:
            yield f"By {timing.name} they came at other times than long prompts do (p {said_of(timing.p)}): look why."
        else:
            yield f"By {timing.name} they came when long prompts come (p {said_of(timing.p)})."


def chance(p: float | None) -> str:
    """Write a p-value for a reader; below a millionth its size says nothing more."""
    return "–" if p is None else "< 0.000001" if p < 1e-6 else f"{p:.2g}"


def said_of(p: float | None) -> str:
    """Write a p-value in a sentence: what it equals or is below."""
    text = chance(p)
    return text if text.startswith("<") else f"= {text}"


def _limits(prompts: Sequence[_Prompt]) -> Iterable[str]:
    nameless = sum(prompt.over and prompt.account is None for prompt in prompts)
    if nameless:
        yield f"{nameless:,} of them carry no account: what they have to do with each other is not known."
    if len(prompts) == ASKED_MAX:
        yield f"Only the first {ASKED_MAX:,} long prompts were tested."
