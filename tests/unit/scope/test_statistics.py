"""Conduct: the planted pattern is named, and accounts that merely differ are not."""

import random

import pytest

from kvfence.scope.conduct import Asked
from kvfence.scope.statistics import MANY, conduct_of, same_times

LIMIT = 681_280
MINUTE = 60_000


def asked(account: str, lengths: list[int], gaps_ms: list[int]) -> Asked:
    """Make an account's prompts from their lengths and the gaps before them."""
    times = tuple(sum(gaps_ms[: index + 1]) for index in range(len(lengths)))
    return Asked(account, times, tuple(lengths), tuple(length > LIMIT for length in lengths))


def ordinary(seed: int, accounts: int = 40) -> list[Asked]:
    """Make accounts that differ much: pipelines, one document asked again, growing chats, and some busy ones."""
    rng = random.Random(seed)
    made = []
    for index in range(accounts):
        count = rng.choice((3, 6, 12, 40))
        pipeline, chat = index % 3 == 0, index % 3 == 1
        pace = 20_000 if pipeline else rng.choice((4 * MINUTE, 30 * MINUTE))
        gaps = [int(rng.expovariate(1 / pace)) + 500 for _ in range(count)]
        length, lengths = rng.randint(350_000, 800_000), []
        for _ in range(count):
            lengths.append(length if length < 1_040_000 else 1_040_000 - rng.randint(0, 90_000))
            asked_again = rng.random() < 0.1
            if pipeline:
                length = rng.randint(350_000, 760_000)
            elif not asked_again:
                length += int(length * rng.lognormvariate(-4, 1.1)) if chat else rng.randint(-900, 900)
        made.append(asked(f"user-{index}", lengths, gaps))
    return made


@pytest.mark.parametrize("seed", range(6))
def test_ordinary_accounts_are_not_named(seed: int) -> None:
    """Accounts that differ in pace, volume and kind of work are no probers, however busy."""
    found = conduct_of(ordinary(seed))
    assert len(found) >= 5
    assert [each.account for each in found if each.named] == []


PLANTED = {
    "ladder": asked("prober", [LIMIT - 30_000 + 3_000 * step for step in range(20)], [7 * MINUTE] * 20),
    "burst": asked("prober", [LIMIT + 997 * (37 * step % 91) for step in range(90)], [2_000] * 90),
    "same length": asked("prober", [LIMIT + 9_000] * 25, [3 * 60 * MINUTE] * 25),
}


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("seed", range(3))
def test_a_prober_is_named_by_its_pattern(name: str, seed: int) -> None:
    """A ladder, a burst and a repeated length are each found among the same ordinary accounts, and nobody else is."""
    found = conduct_of([*ordinary(seed), PLANTED[name]])
    named = {each.account: each.named for each in found if each.named}
    assert set(named) == {"prober"}
    assert name in named["prober"]


def test_a_ladder_needs_even_steps_and_to_cross_the_limit() -> None:
    """A chat that grows by uneven steps rises as far and is no ladder; nor is one that stays below the limit."""
    rng = random.Random(5)
    steps = [int(3_000 * rng.lognormvariate(0, 1.0)) for _ in range(20)]
    chat = asked("chat", [LIMIT - 20_000 + sum(steps[:index]) for index in range(20)], [7 * MINUTE] * 20)
    below = asked("below", [400_000 + 3_000 * step for step in range(20)] + [LIMIT + 1] * MANY, [7 * MINUTE] * 25)
    found = {each.account: each.named for each in conduct_of([*ordinary(1), chat, below])}
    assert "ladder" not in found["chat"]
    assert "ladder" not in found["below"]


def test_few_others_give_no_answer() -> None:
    """With nobody to compare with the tests of shares and bursts say nothing, rather than something."""
    (found,) = conduct_of([PLANTED["burst"]])
    p = {test.name: test.p for test in found.tests}
    assert p["repeat sender"] is None
    assert p["burst"] is None
    assert found.named == ()


def test_few_prompts_above_the_limit_are_not_tested() -> None:
    """An account that crossed the limit less than five times did not try it often."""
    few = asked("few", [LIMIT + 1] * (MANY - 1), [MINUTE] * (MANY - 1))
    assert "few" not in {each.account for each in conduct_of([few, *ordinary(1)])}


def test_the_order_of_accounts_changes_nothing() -> None:
    """The same accounts in another order give the same p-values to the last digit."""
    crowd = [*ordinary(2), PLANTED["ladder"]]
    assert conduct_of(crowd) == conduct_of(list(reversed(crowd)))


def test_times_of_one_pattern_agree_and_of_two_do_not() -> None:
    """Counts drawn like the baseline are ordinary, counts at other hours are not, and nothing gives no answer."""
    baseline = [100, 200, 300, 200]
    assert (same_times([10, 21, 29, 20], baseline) or 0) > 0.5
    assert (same_times([80, 5, 5, 5], baseline) or 1) < 0.01
    assert same_times([0, 0, 0, 0], baseline) is None
    assert same_times([5, 0, 0, 0], [9, 0, 0, 0]) is None
    assert same_times([9, 3, 2, 1], baseline) == same_times([9, 3, 2, 1], baseline)
