"""Which pool and which guards: the runs of the incident.

Not for: playing them (``runs.py`` on the real engine, ``simulated.py`` on the protocol alone).
"""

from msgspec import Struct

from kvfence.incident.workload import MODEST, SHORT, Sizes


class Scenario(Struct, frozen=True):
    """One run's configuration. ``by_fraction``: prefill's pool comes from a share of the memory left."""

    name: str
    pool: str = "small"
    guarded: bool = False
    disaggregated: bool = True
    by_fraction: bool = False
    sizes: Sizes = Sizes()

    @property
    def leaks(self) -> bool:
        """Are both causes there?"""
        return self.pool == "small" and not self.guarded and self.disaggregated

    @property
    def refuses(self) -> bool:
        """Is HTTP 400 the right answer to an oversize prompt here?"""
        return (self.pool == "small" and self.guarded) or not self.disaggregated


SMALL_UNGUARDED = Scenario("small_unguarded")
SMALL_GUARDED = Scenario("small_guarded", guarded=True)
LARGE_UNGUARDED = Scenario("large_unguarded", "large", by_fraction=True)
LARGE_GUARDED = Scenario("large_guarded", "large", guarded=True)
FRACTION_LOWERED = Scenario("memory_fraction_lowered", by_fraction=True, sizes=SHORT)
CONTROL = Scenario("control", disaggregated=False, sizes=MODEST)
LANES = ((SMALL_UNGUARDED, LARGE_GUARDED, CONTROL), (SMALL_GUARDED, LARGE_UNGUARDED, FRACTION_LOWERED))
"""Two rows of runs that go side by side on two cores. The last two are one deployment, before and after its memory
fraction was lowered."""
