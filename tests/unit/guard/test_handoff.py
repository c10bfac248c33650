"""What is promised is compared with what was offered and what landed."""

import pytest
from msgspec.structs import replace

from kvfence.core.ids import AttemptId, Incarnation, new_incarnation
from kvfence.guard.handoff import Expected, Limits, compare_limits, fits_context, verify
from kvfence.guard.messages import Promise

DECODE, PREFILL = new_incarnation(), new_incarnation()
EXPECTED = Expected(AttemptId(DECODE, 7), 1024, 64, "30 buffers")
PROMISE = Promise(
    attempt=EXPECTED.attempt,
    room=5,
    sender=PREFILL,
    num_tokens=1024,
    num_pages=64,
    layout="30 buffers",
    digest="ab",
    pool_tokens=2048,
    context_tokens=2048,
)


def test_what_agrees_is_adopted() -> None:
    """A promise that is the offer's, over bytes that are the promise's, holds."""
    verdict = verify(EXPECTED, PROMISE, lambda: "ab", enforced=True)
    assert verdict.holds
    assert [decision.guard for decision in verdict.decisions] == [
        "stamp-at-adopt",
        "attempt-is-current",
        "layout-agrees",
        "count-matches",
        "digest-matches",
    ]


@pytest.mark.parametrize(
    ("promise", "guard"),
    [
        (None, "stamp-at-adopt"),
        (replace(PROMISE, attempt=AttemptId(DECODE, 6)), "attempt-is-current"),
        (replace(PROMISE, attempt=AttemptId(Incarnation("0" * 32), 7)), "attempt-is-current"),
        (replace(PROMISE, layout="15 buffers"), "layout-agrees"),
        (replace(PROMISE, num_tokens=1), "count-matches"),
        (replace(PROMISE, num_pages=63), "count-matches"),
        (replace(PROMISE, digest="cd"), "digest-matches"),
    ],
)
def test_one_difference_is_refused_by_its_own_guard(promise: Promise | None, guard: str) -> None:
    """Each difference has one guard, which is asked last and answers no."""
    verdict = verify(EXPECTED, promise, lambda: "ab", enforced=True)
    assert not verdict.holds
    assert (verdict.decisions[-1].guard, verdict.decisions[-1].answer) == (guard, "refuse")


def test_observing_counts_and_does_not_enforce() -> None:
    """In observe the same answers are given, marked as observed."""
    verdict = verify(EXPECTED, None, lambda: "ab", enforced=False)
    assert verdict.decisions[-1].answer == "observed"


def test_bytes_are_read_only_once_all_else_agrees() -> None:
    """A hand-off of the wrong count costs no digest."""
    read: list[str] = []
    verify(EXPECTED, replace(PROMISE, num_tokens=1), lambda: read.append("read") or "ab", enforced=True)
    assert read == []


@pytest.mark.parametrize(
    ("limits", "fits"),
    [(Limits(1024, 1536), False), (Limits(1536, 1536), True), (Limits(0, 9), True), (Limits(9, 0), True)],
)
def test_a_pool_below_its_context_is_said(limits: Limits, *, fits: bool) -> None:
    """Both numbers are named; what is not known is not held against anybody."""
    said = fits_context(limits)
    assert not said if fits else "1024" in said and "1536" in said


def test_what_a_pair_differs_in_is_said() -> None:
    """A smaller context and a smaller pool; a larger pool is no fault, and nothing is said of what is not known."""
    assert compare_limits(Limits(4096, 2048), Limits(8192, 2048)) == ()
    assert compare_limits(Limits(4096, 2048), Limits(0, 0)) == ()
    said = compare_limits(Limits(1536, 1536), Limits(1024, 2048))
    assert ["1536" in one or "1024" in one for one in said] == [True, True]
