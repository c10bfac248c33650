"""Does it look like ordinary long-context traffic, or like somebody trying the door? Tests with p-values.

Accounts differ from each other, and people work in bouts; tests that suppose independent requests would call every busy
customer a prober. So each account is compared with how much the *other* accounts vary among themselves:

- *repeat sender*: which share of its long prompts is above the limit, by its rank among the others' shares;
- *same length*: how often a long prompt is as long as the one before, against the others' shares (beta-binomial);
- *burst*: its largest bout of prompts above the limit, against the others' bouts of long prompts (their largest tenth
  followed by a geometric tail);
- *ladder*: a rising run of lengths, by the n!/r! ways in which chance orders it, and even steps (chi-squared against
  steps that vary by a quarter). Both must hold, so the larger p counts.

Only accounts with ``MANY`` prompts above the limit are tested. The false discovery rate is held over all accounts and
tests together (Benjamini and Hochberg). A small p says "unlike the others", not why.
Not for: reading logs, words in a report (``report/conduct.py``).
"""

from collections.abc import Iterable, Sequence
from math import factorial, fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from kvfence.scope.conduct import Asked, Conduct, Test

MANY = 5
"""Prompts above the limit from which on an account's conduct is tested."""

OTHERS_MIN = 8
"""Other accounts (or bouts) from which on their spread is known well enough to compare with."""

BOUT_GAP_MS = 60_000
"""Prompts of one account less than a minute apart are one bout."""

BOUTS_MIN = 30

RUN_MIN = 6
STEP_VARIATION = 0.25
RESAMPLES = 9_999


def conduct_of(asked: Sequence[Asked]) -> tuple[Conduct, ...]:
    """Test every account that asked often enough; the one with most prompts above the limit first."""
    asked = sorted(asked, key=lambda each: each.account)
    tested = sorted((each for each in asked if each.num_over >= MANY), key=lambda each: (-each.num_over, each.account))
    raw = [[_share(each, asked), _same(each, asked), _burst(each, asked), _ladder(each)] for each in tested]
    known = [test.p for tests in raw for test in tests if test.p is not None]
    corrected = iter(stats.false_discovery_control(known, method="bh") if known else ())
    found = []
    for each, tests in zip(tested, raw, strict=True):
        adjusted = (
            Test(t.name, _short(t.p), _short(None if t.p is None else next(corrected)), t.observed) for t in tests
        )
        found.append(Conduct(each.account, each.num_over, tuple(adjusted)))
    return tuple(found)


def _short(p: float | None) -> float | None:
    """Round a p-value to three digits, so that a report is the same on every machine."""
    return None if p is None else float(f"{min(max(float(p), 0.0), 1.0):.3g}")


def _share(one: Asked, asked: Sequence[Asked]) -> Test:
    text = f"{one.num_over} of {len(one.over)} long prompts above the limit"
    others = [
        each.num_over / len(each.over) for each in asked if each.account != one.account and len(each.over) >= MANY
    ]
    if len(others) < OTHERS_MIN:
        return Test("repeat sender", None, None, text)
    as_high = sum(share >= one.num_over / len(one.over) for share in others)
    return Test("repeat sender", (as_high + 1) / (len(others) + 1), None, text)


def _same(one: Asked, asked: Sequence[Asked]) -> Test:
    others = [_repeats(each) for each in asked if each.account != one.account]
    same, pairs = _repeats(one)
    return Test("same length", _beyond(same, pairs, others), None, f"{same} of {pairs} as long as the one before")


def _repeats(one: Asked) -> tuple[int, int]:
    pairs = list(zip(one.lengths, one.lengths[1:], strict=False))
    return sum(before == after for before, after in pairs), len(pairs)


def _beyond(hits: int, tries: int, others: Sequence[tuple[int, int]]) -> float | None:
    """Give the chance of so many hits or more, were the account one of the others: beta-binomial, fitted by moments."""
    usable = [(k, n) for k, n in others if n > 0]
    if tries == 0 or len(usable) < OTHERS_MIN:
        return None
    k, n = (np.array(column, np.float64) for column in zip(*usable, strict=True))
    mean = (k.sum() + 0.5) / (n.sum() + 1.0)
    within = fsum((n * (k / n - mean) ** 2).tolist()) / (mean * (1 - mean))
    pairs = float(n.sum() - (n**2).sum() / n.sum())
    alike = min(max((within - (len(n) - 1)) / max(pairs - (len(n) - 1), 1.0), 1e-4), 0.95)
    weight = (1 - alike) / alike
    tail = stats.betabinom.logpmf(np.arange(hits, tries + 1), tries, mean * weight, (1 - mean) * weight)
    return min(float(np.exp(logsumexp(tail))), 1.0)


def _burst(one: Asked, asked: Sequence[Asked]) -> Test:
    own = _bouts(time for time, over in zip(one.times_ms, one.over, strict=True) if over)
    largest = max(own)
    text = f"{largest} above the limit within a minute of each other, of {len(own)} such bouts"
    others = [size for each in asked if each.account != one.account for size in _bouts(each.times_ms)]
    if len(others) < BOUTS_MIN:
        return Test("burst", None, None, text)
    single = _tail(largest, np.sort(np.array(others, np.float64)))
    return Test("burst", float(-np.expm1(len(own) * np.log1p(-min(single, 1 - 1e-12)))), None, text)


def _bouts(times_ms: Iterable[int]) -> list[int]:
    """Give the sizes of the bouts in which prompts came."""
    times, sizes = list(times_ms), [0]
    for index, time in enumerate(times):
        if index and time - times[index - 1] > BOUT_GAP_MS:
            sizes.append(0)
        sizes[-1] += 1
    return sizes


def _tail(largest: int, others: NDArray[Any]) -> float:
    """Give the chance that one of the others' bouts is so large: counted, and beyond their largest tenth geometric."""
    edge = float(others[int(0.9 * len(others))])
    if largest <= edge:
        return float((np.sum(others >= largest) + 1) / (len(others) + 1))
    beyond = others[others > edge] - edge
    mean = (float(beyond.sum()) + 1) / (len(beyond) + 1)
    reached = (len(beyond) + 1) / (len(others) + 1)
    return float(reached * stats.geom.sf(largest - edge - 1, 1 / max(mean, 1.001)))


def _ladder(one: Asked) -> Test:
    """Take the longest rising run: neither chance nor a growing conversation rises so far in so even steps."""
    start, length = _longest_rise(one.lengths)
    run = one.lengths[start : start + length]
    text = f"{length} lengths rising one after the other"
    if length < RUN_MIN:
        return Test("ladder", 1.0, None, text)
    order = min((len(one.lengths) - length + 1) / factorial(min(length, 150)), 1.0)
    steps = np.diff(np.array(run, np.float64))
    variation = float(np.std(steps, ddof=1) / np.mean(steps))
    even = float(stats.chi2.cdf((len(steps) - 1) * (variation / STEP_VARIATION) ** 2, len(steps) - 1))
    crosses = any(one.over[start : start + length])
    text += f", steps of about {np.mean(steps):,.0f} tokens that vary by {variation:.0%}"
    return Test("ladder", max(order, even) if crosses else 1.0, None, text)


def _longest_rise(lengths: Sequence[int]) -> tuple[int, int]:
    """Give where the longest strictly rising run begins, and its length."""
    best, start = (0, 1), 0
    for index in range(1, len(lengths) + 1):
        if index == len(lengths) or lengths[index] <= lengths[index - 1]:
            best = max(best, (start, index - start), key=lambda run: run[1])
            start = index
    return best if lengths else (0, 0)


def same_times(over: Sequence[int], baseline: Sequence[int], seed: int = 1) -> float | None:
    """Test whether two rows of counts (by hour, by day) share one pattern: chi-squared, p by permutation.

    Returns:
        None where either has no count, or all stand in one place.
    """
    table = np.array([over, baseline], np.int64)
    table = table[:, table.sum(axis=0) > 0]
    if min(table.sum(axis=1), default=0) == 0 or table.shape[1] < 2:
        return None
    method: Any = stats.MonteCarloMethod(n_resamples=RESAMPLES, rng=np.random.default_rng(seed))
    return _short(stats.chi2_contingency(table, correction=False, method=method).pvalue)
