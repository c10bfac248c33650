"""Markers: strings that no text holds by accident and that a small model can repeat.

A marker is one word of each of four lists: three words and four digits, ``copper lantern walnut 4821``. No two markers
of a run share a word, so that a single word already says whose text it was; how much such a part proves, the
detectors say. Everything follows from the run's seed.
"""

import random
from collections.abc import Sequence

from msgspec import Struct

from kvfence.core.errors import SettingsError
from kvfence.probe.words import LISTS

MARKERS_MAX = min(map(len, LISTS))
PER_TENANT_MAX = 12


class Markers(Struct, frozen=True):
    """The one registry of a run: by tenant, its markers."""

    planted: dict[str, tuple[str, ...]]

    def of(self, tenant: str, number: int) -> str:
        """Give a tenant's marker, in turn."""
        own = self.planted[tenant]
        return own[number % len(own)]


def draw_markers(seed: int, tenants: Sequence[str]) -> Markers:
    """Draw each tenant's markers; the same seed and tenants give the same.

    Raises:
        SettingsError: there are more tenants than markers.
    """
    if len(tenants) > MARKERS_MAX:
        raise SettingsError([f"{len(tenants)} tenants: at most {MARKERS_MAX}; name fewer keys"])
    rng = random.Random(f"markers/{seed}")
    drawn = [" ".join(words) for words in zip(*(rng.sample(words, MARKERS_MAX) for words in LISTS), strict=True)]
    each = min(PER_TENANT_MAX, MARKERS_MAX // len(tenants))
    planted = {tenant: tuple(drawn[index * each : (index + 1) * each]) for index, tenant in enumerate(tenants)}
    return Markers(planted)
