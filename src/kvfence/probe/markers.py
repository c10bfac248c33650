"""Markers: strings that no text holds by accident and that a small model can repeat.

A marker is one word of each of four lists: three words and four digits, ``copper lantern walnut 4821``. No two markers
of a run share a word, so that a single word already says whose text it was; how much such a part proves, the
detectors say. Everything follows from the run's seed.
"""

import math
import random
from collections.abc import Sequence

from msgspec import Struct

from kvfence.core.errors import SettingsError
from kvfence.probe.words import LISTS

MARKERS_MAX = min(map(len, LISTS))
PER_TENANT_MAX = 12
SPACE: int = math.prod(map(len, LISTS))
"""So many markers there are; each is as likely as any other."""

ENTROPY_BITS: float = math.log2(SPACE)


class Markers(Struct, frozen=True):
    """The one registry of a run: by tenant, its markers."""

    planted: dict[str, tuple[str, ...]]

    @property
    def count(self) -> int:
        """Give how many are planted."""
        return sum(map(len, self.planted.values()))

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


def accident_bound(num_markers: int, num_characters: int) -> float:
    """Bound the chance that any of the markers stands in a text that nobody who knew them has written.

    At each place of a fixed text at most one marker of all ``SPACE`` can begin (four digits follow three words), and
    each marker of a run is drawn evenly from them; so the chance is at most markers times places over ``SPACE``,
    whatever the text is.
    """
    return min(1.0, num_markers * num_characters / SPACE)
