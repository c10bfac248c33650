"""What chance can do: bounds on rates, exact tests, and how a run's false alarms are shared out.

Every test that can accuse is given a share of one of two budgets, fixed before anything is sent (Bonferroni), so that
the chance of *any* false accusation in a sound run is at most the budget, however the tests depend on each other.
Not for: which test is asked when (``detectors/``).
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy import stats

LEAK_CHANCE, SUSPECT_CHANCE = 1e-6, 1e-3
"""The chance that a sound run is called LEAK, or SUSPECT, by those tests that rest on chance."""

RESAMPLES = 99_999
"""Shuffles of a permutation test: the smallest p it can give is one in 100,000."""

CONFIDENCE = 0.95


NUM_LEAK, NUM_SUSPECT = 2, 7
"""Detectors that rest on chance, by what they can say: each has an equal share of its budget, whatever it finds."""


class Limits(Struct, frozen=True):
    """At or below which p a test accuses. ``leak``: 0 where it never says LEAK."""

    leak: float
    suspect: float


def share(tests: int = 1, *, may_leak: bool = False) -> Limits:
    """Give what one test of a detector may spend, where the detector asks so many."""
    return Limits(LEAK_CHANCE / NUM_LEAK / tests if may_leak else 0.0, SUSPECT_CHANCE / NUM_SUSPECT / tests)


def at_least(hits: int, tries: int, rate: float) -> float:
    """Give the chance of so many hits or more, each at most at this rate."""
    return 1.0 if hits <= 0 else float(stats.binom.sf(hits - 1, tries, min(max(rate, 0.0), 1.0)))


def rate_above(hits: int, tries: int, miss: float) -> float:
    """Give the rate that is exceeded with a chance of error of ``miss`` (Clopper and Pearson, one side)."""
    return 0.0 if hits <= 0 else float(stats.beta.ppf(miss, hits, tries - hits + 1))


def rate_below(hits: int, weight: float, miss: float) -> float:
    """Give the rate that is not reached, with a chance of error of ``miss``, where so many hits were seen.

    ``weight``: tries, each counted by its chance of showing a hit. Independent tries that each show a hit with rate
    times chance show none of it with a probability of at most exp(-rate * weight): at 5 % the rule of three, and never
    below Clopper and Pearson. With hits it is Poisson's limit, likewise.
    """
    return 1.0 if weight <= 0 else min(1.0, float(stats.chi2.ppf(1 - miss, 2 * (hits + 1))) / 2 / weight)


def fewer(hits: int, tries: int, other_hits: int, other_tries: int, odds: float = 1.0) -> float:
    """Give the chance of so few hits, or fewer, if the odds of a hit were at least ``odds`` of the others' odds.

    Exact and conditional on both sums: Fisher's test; where odds is not 1, by his noncentral hypergeometric law.
    """
    total, all_hits = tries + other_tries, hits + other_hits
    if not tries or not other_tries or all_hits in (0, total):
        return 1.0
    return float(min(1.0, stats.nchypergeom_fisher.cdf(hits, total, all_hits, tries, odds)))


def sooner(times: Sequence[float], others: Sequence[float]) -> float:
    """Give the chance that times so much smaller than the others are of one kind with them: Mann and Whitney, exact."""
    if not times or not others:
        return 1.0
    return float(stats.mannwhitneyu(times, others, alternative="less", method="exact").pvalue)


def labels_matter(distances: Sequence[NDArray[np.float64]], labels: Sequence[Sequence[str]], seed: int) -> float:
    """Test whether things of one label are nearer to each other than to others, by shuffling labels in each group.

    Shapes:
        distances: for each group [n, n], symmetric. labels: for each group n, of two kinds.
    Returns:
        The share of shuffles in which the labels separate as well as they do or better, this one counted.
    """
    rng = np.random.default_rng(seed)
    seen = np.zeros(1)
    shuffled = np.zeros(RESAMPLES)
    for matrix, names in zip(distances, labels, strict=True):
        signs = np.array([1.0 if name == names[0] else -1.0 for name in names])
        drawn = rng.permuted(np.tile(signs, (RESAMPLES, 1)), axis=1)
        # Distances between labels, less those within: signs differ between labels, so this is minus the quadratic form.
        seen = seen - signs @ matrix @ signs
        shuffled -= np.einsum("ri,ij,rj->r", drawn, matrix, drawn, optimize=True)
    return float((1 + np.sum(shuffled >= seen - 1e-9)) / (1 + RESAMPLES))
