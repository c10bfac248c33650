"""What a search is bounded by: who asks for what, how small the pools are, what may go wrong and how often.

Every number here is a limit of what the search can say. Read ``model.py`` next.
"""

from msgspec import Struct
from msgspec.structs import replace

from kvfence.driver.loop import Rewrite
from kvfence.driver.mutants import placeholder_on_refusal, silent_refusal
from kvfence.protocol.admission import Capacity, fits
from kvfence.protocol.guards import Rules
from kvfence.protocol.transitions import Fence

FAULTS: dict[str, str] = {
    "loss": "a message vanishes",
    "duplicate": "a message or token arrives, and once more later",
    "confuse": "a completion is taken for that of another open attempt",
    "corrupt": "a write lands other bytes than it read",
    "misdirect": "a write goes to a page that a running sequence uses",
    "hasty": "a batch is called done before all of it has landed",
    "stall": "a batch is given up; what has not landed may land later, or never",
    "cancel": "a client leaves",
    "deadline": "an attempt's time is over at one of the nodes",
    "retry": "a client whose request failed asks the same again",
    "silence": "the gateway takes a living worker for silent",
    "restart-prefill": "prefill dies and a successor is born; until it is reaped, what it posted goes on landing",
    "restart-decode": "decode dies; its successor finds the memory as it is",
}
"""What may go wrong, each at most once in a run."""

BEYOND: dict[str, str] = {
    "misdirect-early": "a write goes to a page that its next holder has not written yet, and lands around that",
}
"""What no guard here answers: the limits of the fault model. Never part of *all*."""

SETUPS: dict[str, str] = {
    "former-writes": "writes of a life before decode's first are still on their way",
    "unzeroed": "prefill leaves what lies behind the last token",
    "drift": "prefill writes another layout than decode reads",
    "placeholder": "prefill's engine replaces a prompt that it refuses by one token",
    "silent-refusal": "prefill's engine retires a prompt that it refuses without a word to decode",
    "shared-early": "prefill's index names pages as soon as they are granted",
    "unsalted": "prefill's index forgets whose prompt it looks for",
}
"""Mistakes that are there from the start."""


BITS = {name: 1 << number for number, name in enumerate((*FAULTS, *BEYOND))}
"""The bit of ``Around.used`` that says that a fault has happened."""


class Asked(Struct, frozen=True):
    """One client's request. ``family``: prompts of one family begin alike. Units: tokens."""

    num_tokens: int = 2
    max_tokens: int = 2
    tenant: int = 0
    family: int = 0


class Bounds(Struct, frozen=True):
    """One closed world and how much may go wrong in it.

    ``requests``: in the order in which they are submitted, each by another client.
    ``faults``: which of ``FAULTS`` and ``BEYOND`` may happen, each at most once, and ``faults_max`` together at most.
    ``setups``: which of ``SETUPS`` hold from the start.
    ``asking_max``: so many clients wait for an answer at once, and the others ask later; 0: all of them.
    ``in_order``: a write lands head, bytes, tail in this order, as ``lands_in_order`` of a transport promises.
    ``engine_pages``: what prefill's engine takes of a prompt where that is less than its pool; 0: its pool.
    ``swapped``: requests may be submitted in any order: the unreduced graph of requests that are alike.
    ``exact``: tell states apart that differ only in the names of pages, serials, or tags that nobody compares.
    ``settled``: what no order can change happens at once (``settled.py``).
    """

    requests: tuple[Asked, ...] = (Asked(), Asked())
    capacity: Capacity = Capacity(page_size=2, context_tokens=6, prefill_pages=3, decode_pages=4)
    rules: Rules = Rules()
    faults: frozenset[str] = frozenset()
    faults_max: int = 2
    setups: frozenset[str] = frozenset()
    fence: Fence = Fence.PEER_EXIT
    batch_pages_max: int = 1
    asking_max: int = 0
    in_order: bool = True
    engine_pages: int = 0
    cached_lots_max: int = 0
    swapped: bool = False
    exact: bool = False
    settled: bool = False

    def misfit(self, asked: Asked) -> bool:
        """Does it fit no pool, or not the context?"""
        pages = self.capacity.num_pages(asked.num_tokens)
        fit = all(each.holds for each in fits(self.capacity, asked.num_tokens, asked.max_tokens))
        return not fit or 0 < self.engine_pages < pages

    @property
    def engine_capacity(self) -> Capacity:
        """What prefill's engine takes."""
        pages = self.engine_pages or self.capacity.prefill_pages
        return replace(self.capacity, prefill_pages=pages)


def rewrites_of(bounds: Bounds) -> tuple[Rewrite, ...]:
    """Give the mistakes of prefill's engine as rewriters of events."""
    made = {"placeholder": placeholder_on_refusal, "silent-refusal": silent_refusal}
    return tuple(make(bounds.engine_capacity) for name, make in made.items() if name in bounds.setups)
