"""Every practice server by name: which guards are away, what goes wrong, and what one will see of it.

Not for: doing it (``prefill_worker.py``, ``writers.py``). Standard library and msgspec only.
"""

from typing import Literal

from msgspec import Struct

from kvfence.driver.mutants import INCIDENT_LACKS
from kvfence.protocol.guards import Rules

Fault = Literal["none", "placeholder"]


class Range(Struct, frozen=True):
    """One practice server.

    ``lacks``: the guards that are away. ``fault``: what its workers do wrong. ``teaches``: for lists; ``shows``: what
    whoever asks it will see. ``rate``: the default share of what can go wrong that does; None where it always does.
    """

    name: str
    lacks: tuple[str, ...]
    fault: Fault
    teaches: str
    shows: str
    rate: float | None = None

    @property
    def leaks(self) -> bool:
        """Is it made to go wrong?"""
        return self.fault != "none"

    def rules(self, put_back: tuple[str, ...] = ()) -> Rules:
        """Give its rule set; ``put_back``: guards to have all the same, for tests."""
        away = Rules.without(*self.lacks)
        back = Rules.without(*put_back).absent if put_back else frozenset()
        return Rules(away.absent - back)


_ALL = (
    Range(
        "incident",
        INCIDENT_LACKS,
        "placeholder",
        "a prompt larger than prefill's pool is answered from pages that others filled",
        "prompts above the prefill pool get HTTP 200, quickly, with other tenants' text in it",
    ),
    Range(
        "sound",
        (),
        "none",
        "the control: the same pools with every guard on",
        "prompts above the prefill pool get HTTP 400; no answer holds anybody else's text",
    ),
)

RANGES = {each.name: each for each in _ALL}
