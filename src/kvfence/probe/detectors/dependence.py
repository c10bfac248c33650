"""An answer depends on what another tenant sent just before it.

What it rests on: one prompt, but for the number it begins with, is asked again and again at temperature 0 with nothing
in flight, each time after another tenant's prompt, B's or C's, drawn by lot. On a sound server the answer may change,
but not *with* the lot.

The bound: a permutation test in each group, exact up to ``RESAMPLES`` shuffles: distance between answers (1 where the
texts differ, and the difference of the first log probability where offered), between lots less within lots. It needs no
determinism; where calibration saw that the server is not deterministic the test is still right, and weaker.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvfence.probe.chance import labels_matter, share
from kvfence.probe.exchange import Exchange, Phase, Record
from kvfence.probe.finding import Finding, Severity, Sight
from kvfence.probe.texts import number_of

NAME = "depends-on-others"
LIMITS = share()
AFTER = ("after-b", "after-c")
LEAST = 2
"""Answers after each tenant that a group needs."""


def look(record: Record) -> list[Finding]:
    """Test whether answers go with the lot."""
    groups: dict[tuple[str, int | str], list[Exchange]] = defaultdict(list)
    for each in record.exchanges:
        if each.ask.phase is Phase.REPLAY and each.ask.role in AFTER and each.is_answer:
            groups[each.ask.group, each.ask.text_id].append(each)
    asked = [group for group in groups.values() if _is_enough(group)]
    if not asked:
        return []
    distances = [_distances(group) for group in asked]
    if not any(matrix.any() for matrix in distances):
        return []
    p = labels_matter(distances, [[each.ask.role for each in group] for group in asked], record.seed)
    if p > LIMITS.suspect:
        return []
    sights = tuple(
        Sight(exchange=each, seen=f"answered {each.ask.role.replace('after-', 'after tenant ')}")
        for group in asked
        for each in group
    )
    message = "one prompt is answered differently after different tenants, again and again"
    return [
        Finding(detector=NAME, severity=Severity.SUSPECT, message=message, p=p, limit=LIMITS.suspect, sights=sights)
    ]


def _is_enough(group: Sequence[Exchange]) -> bool:
    return all(sum(each.ask.role == role for each in group) >= LEAST for role in AFTER)


def _distances(group: Sequence[Exchange]) -> NDArray[np.float64]:
    """Give how far answers are from each other. Shapes: [n, n]."""
    texts = [(each.aside + each.text).replace(number_of(each.ask.prompt), "") for each in group]
    first = [each.logprobs[0][1] if each.logprobs else 0.0 for each in group]
    differ = np.array([[float(one != other) for other in texts] for one in texts])
    apart = np.abs(np.subtract.outer(first, first))
    return np.asarray(differ + np.minimum(np.nan_to_num(apart, nan=1.0, posinf=1.0), 1.0), np.float64)
