"""Which pool and which guards: the runs of the incident.

Not for: playing them (``runs.py`` on the real engine, ``simulated.py`` on the protocol alone).
"""

from msgspec import Struct

from kvfence.incident.workload import FEW, MODEST, SHORT, Sizes


class Scenario(Struct, frozen=True):
    """One run's configuration.

    ``by_fraction``: prefill's pool comes from a share of the memory left. ``sizes``: of the tenants' requests.
    ``every_round``: tenants ask anew before each group of oversize prompts.
    """

    name: str
    pool: str = "small"
    guarded: bool = False
    disaggregated: bool = True
    by_fraction: bool = False
    sizes: Sizes = Sizes()
    every_round: bool = False

    @property
    def refuses(self) -> bool:
        """Is HTTP 400 the right answer to an oversize prompt here?"""
        return (self.pool == "small" and self.guarded) or not self.disaggregated


SMALL_UNGUARDED = Scenario("small_unguarded", every_round=True)
SMALL_GUARDED = Scenario("small_guarded", guarded=True, sizes=FEW)
LARGE_UNGUARDED = Scenario("large_unguarded", "large", by_fraction=True, sizes=FEW)
LARGE_GUARDED = Scenario("large_guarded", "large", guarded=True, sizes=FEW)
FRACTION_LOWERED = Scenario("memory_fraction_lowered", by_fraction=True, sizes=SHORT, every_round=True)
CONTROL = Scenario("control", disaggregated=False, sizes=MODEST)
LANES = ((SMALL_UNGUARDED, SMALL_GUARDED, LARGE_GUARDED), (CONTROL, LARGE_UNGUARDED, FRACTION_LOWERED))
"""Two rows of runs of like length that can go side by side. The last two are one deployment, before and after its
memory fraction was lowered; the run before them tells the size of a page."""
