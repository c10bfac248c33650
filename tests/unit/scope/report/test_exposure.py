"""Each model's verdict is arithmetic over its history, and what is not known stays UNKNOWN."""

from datetime import datetime

import pytest

from kvfence.scope.relation import Duplicates, History, Interval, Relation
from kvfence.scope.report.exposure import exposure
from tests.unit.scope.report.conftest import CONTEXT, INTERVAL, MODEL, POOL

WINDOW = (datetime.fromisoformat("2026-08-27"), datetime.fromisoformat("2026-09-10"))


def relation(interval: Interval, pool: int | None = None, context: int | None = None) -> Relation:
    """Make a relation of which only the history is asked."""
    nothing = dict.fromkeys(("classified", "places", "accounts", "lengths"))
    rest = {"counts": {}, "reasons": {}, "readings": (), "duplicates": Duplicates(), "long_tokens": 1}
    history = History((interval,), given=True)
    return Relation(**nothing, **rest, history=history, window=WINDOW, window_given=True, pool=pool, context=context)


@pytest.mark.parametrize(
    ("interval", "verdict", "said"),
    [
        (INTERVAL, "EXPOSED", "pool 681,280 < context 1,048,576"),
        (
            Interval(model=MODEL, pool=CONTEXT, context=CONTEXT),
            "UNREACHABLE",
            "no prompt that the context lets through",
        ),
        (Interval(model=MODEL, pool=CONTEXT, context=CONTEXT, margin=6), "UNKNOWN", "a pool of 1,048,582"),
        (Interval(model=MODEL, pool=POOL, context=CONTEXT, single=True), "UNREACHABLE", "single node"),
        (Interval(model=MODEL, pool=POOL, context=CONTEXT, vulnerable=False), "UNREACHABLE", "refuses rightly"),
        (Interval(model=MODEL, pool=POOL, context=CONTEXT, vulnerable=None), "UNKNOWN", "not known"),
        (Interval(model=MODEL, pool=POOL, context=CONTEXT, decode_pool=POOL), "UNREACHABLE", "decode refuses first"),
        (Interval(model=MODEL, pool=POOL), "UNKNOWN", "its context is not known"),
        (Interval(model=MODEL, context=CONTEXT), "UNKNOWN", "its pool is not known"),
        (Interval(model="another", pool=POOL, context=CONTEXT), "UNKNOWN", "its pool is not known"),
        (
            Interval(model=MODEL, pool=POOL, context=CONTEXT, end=datetime.fromisoformat("2026-08-27")),
            "UNKNOWN",
            "its pool is not known",
        ),
    ],
)
def test_a_model_is_judged_by_arithmetic(interval: Interval, verdict: str, said: str) -> None:
    """EXPOSED, UNREACHABLE and UNKNOWN follow from pool, context, release and kind, with the numbers shown."""
    found = exposure(relation(interval), MODEL, 0)
    assert found.verdict == verdict
    assert any(said in sentence for sentence in found.why)


def test_affected_answers_expose_a_model_whatever_its_history_says() -> None:
    """What was seen wins over what was told."""
    told = Interval(model=MODEL, pool=CONTEXT, context=CONTEXT)
    assert exposure(relation(told), MODEL, 0).verdict == "UNREACHABLE"
    assert exposure(relation(told), MODEL, 3).verdict == "EXPOSED"


def test_the_command_line_fills_what_the_history_does_not_say() -> None:
    """--pool and --context hold where the history is silent, and only there."""
    assert exposure(relation(Interval(model="another", pool=1), POOL, CONTEXT), MODEL, 0).verdict == "EXPOSED"
    assert exposure(relation(Interval(model=MODEL, pool=CONTEXT), POOL, CONTEXT), MODEL, 0).verdict == "UNREACHABLE"
