"""The arithmetic, against numbers worked out by hand."""

import math

import numpy as np
import pytest

from kvfence.probe import chance
from kvfence.probe.detectors import ALL
from kvfence.probe.finding import Severity


def test_silence_bounds_by_the_rule_of_three() -> None:
    """Nothing in 100 tries bounds the rate at 95 % by 3.0 %: -ln(0.05) / 100."""
    assert chance.rate_below(0, 100, 0.05) == pytest.approx(0.029957, rel=1e-4)
    assert chance.rate_below(0, 0, 0.05) == 1.0


@pytest.mark.parametrize("tries", [3, 10, 100, 2_000])
def test_the_bound_of_silence_is_never_below_the_exact_one(tries: int) -> None:
    """Clopper and Pearson's limit for none in n is 1 - miss^(1/n); ours is wider."""
    assert chance.rate_below(0, tries, 0.05) >= min(1.0, 1 - 0.05 ** (1 / tries))


def test_with_hits_the_bound_is_poissons() -> None:
    """One hit in 100: the tables' 4.744 / 100."""
    assert chance.rate_below(1, 100, 0.05) == pytest.approx(0.04744, rel=1e-3)


def test_a_lower_limit_is_clopper_and_pearsons() -> None:
    """Ten of ten give miss^(1/10); eight of ten at 2.5 % give 0.4439 (the tables' value); none gives nothing."""
    assert chance.rate_above(10, 10, 0.025) == pytest.approx(0.025**0.1, rel=1e-9)
    assert chance.rate_above(8, 10, 0.025) == pytest.approx(0.4439, abs=1e-4)
    assert chance.rate_above(0, 10, 0.025) == 0.0


def test_at_least_is_a_binomial_tail() -> None:
    """Two or more of three at one in ten: 3 * 0.01 * 0.9 + 0.001."""
    assert chance.at_least(2, 3, 0.1) == pytest.approx(0.028)
    assert chance.at_least(0, 3, 0.1) == 1.0


def test_fewer_is_fishers_test() -> None:
    """None of 6 against 6 of 6: one in C(12, 6). With odds of a quarter granted, less is proven."""
    assert chance.fewer(0, 6, 6, 6) == pytest.approx(1 / math.comb(12, 6))
    assert chance.fewer(0, 6, 6, 6, 0.25) > 10 * chance.fewer(0, 6, 6, 6)
    assert chance.fewer(3, 3, 0, 0) == 1.0


def test_sooner_is_exact() -> None:
    """All of 5 below all of 5: one in C(10, 5)."""
    assert chance.sooner([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(1 / 252)


def test_labels_that_part_everything_are_found_and_labels_that_part_nothing_are_not() -> None:
    """Ten and ten whose answers go with the label; then answers that are all alike."""
    labels = ["b", "c"] * 10
    apart = np.array([[float(one != other) for other in labels] for one in labels])
    assert chance.labels_matter([apart], [labels], 1) < 1e-4
    assert chance.labels_matter([np.zeros((20, 20))], [labels], 1) == 1.0


def test_the_shares_of_all_detectors_come_to_the_budgets() -> None:
    """However many detectors there are, what they may spend is what is stated."""
    by_chance = [each for each in ALL if each.by_chance]
    may_leak = [each for each in by_chance if each.worst is Severity.LEAK]
    assert len(by_chance) * chance.share().suspect == pytest.approx(chance.SUSPECT_CHANCE)
    assert len(may_leak) * chance.share(may_leak=True).leak == pytest.approx(chance.LEAK_CHANCE)
    assert all(each.by_chance for each in ALL if each.worst is Severity.LEAK)
