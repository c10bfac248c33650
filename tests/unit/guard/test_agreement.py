"""A hand-off holds where it holds on every rank, and nothing does where ranks speak of different ones."""

import threading
from collections.abc import Sequence

import pytest

from kvfence.core.invariant import InvariantBroken
from kvfence.guard.agreement import agree


class Ranks:
    """So many ranks in threads, and their collective: all wait for all, and the smallest values come back."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=10)
        self._given: list[Sequence[int]] = [()] * count

    def minimum(self, rank: int, values: Sequence[int]) -> list[int]:
        """Give the smallest value at each place, to every rank."""
        self._given[rank] = values
        self._barrier.wait()
        least = [min(each) for each in zip(*self._given, strict=True)]
        self._barrier.wait()
        return least

    def agree(self, judged: Sequence[Sequence[tuple[str, bool]]]) -> list[tuple[bool, ...]]:
        """Let every rank say what it found; give what each was answered."""
        answers: list[tuple[bool, ...]] = [()] * len(judged)

        def run(rank: int) -> None:
            answers[rank] = agree(judged[rank], lambda values: self.minimum(rank, values))

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(judged))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        return answers


def test_one_rank_that_refuses_refuses_for_all() -> None:
    """What one rank found wrong holds nowhere; what all found right holds everywhere."""
    judged = [[("a", True), ("b", True), ("c", False)], [("a", True), ("b", False), ("c", False)]]
    assert Ranks(2).agree(judged) == [(True, False, False)] * 2


def test_without_the_collective_the_ranks_part() -> None:
    """A collective that is no collective leaves one rank adopting what the other drops."""
    judged = [[("a", True)], [("a", False)]]
    assert [agree(each, lambda values: values) for each in judged] == [(True,), (False,)]


@pytest.mark.parametrize(
    "other",
    [[("a", True)], [("b", True), ("a", True)], [("a", True), ("c", True)], []],
    ids=["fewer", "another order", "another name", "none"],
)
def test_ranks_that_name_different_handoffs_hold_nothing(other: list[tuple[str, bool]]) -> None:
    """Nothing is adopted on the word of a rank that speaks of something else, and nobody waits for ever."""
    ranks = Ranks(3)
    whole = [("a", True), ("b", True)]
    assert ranks.agree([whole, other, whole]) == [(False, False), tuple(False for _ in other), (False, False)]


def test_nothing_to_judge_is_no_second_collective() -> None:
    """Ranks without hand-offs still meet once, as the others would wait for them."""
    assert Ranks(2).agree([[], []]) == [(), ()]


def test_a_collective_that_fails_is_no_agreement() -> None:
    """What a rank is not told it does not guess."""

    def broken(_: Sequence[int]) -> Sequence[int]:
        raise ConnectionError("a rank is gone")

    with pytest.raises(ConnectionError):
        agree([("a", True)], broken)


def test_a_collective_that_loses_values_is_a_bug() -> None:
    """One value too few would give another hand-off's answer."""
    answers = iter([None, [1]])
    with pytest.raises(InvariantBroken):
        agree([("a", True), ("b", True)], lambda values: next(answers) or values)
