"""Whose bytes did each token that left read? The simulation's judge; no node can ask it."""

from msgspec import Struct

from kvfence.core.ids import AttemptId
from kvfence.sim.memory import Written
from kvfence.sim.workload import SimRequest


class PageRead(Struct, frozen=True):
    """One page as a pass read it, at one position of its sequence."""

    page: int
    position: int
    held: tuple[Written | None, ...]


class WrongRead(Struct, frozen=True):
    """A token that left although this page did not hold its sequence's own bytes."""

    request: SimRequest
    attempt: AttemptId
    index: int
    read: PageRead

    @property
    def leaked_from(self) -> frozenset[str]:
        """The other tenants whose bytes were read."""
        owners = {str(held.tenant) for held in self.read.held if held is not None}
        return frozenset(owners - {str(self.request.tenant), "nobody"})


class Oracle:
    """Judges every token that leaves.

    Holds: ``wrong_reads`` in order; ``num_tokens`` that left.
    """

    def __init__(self, layout: str, page_size: int) -> None:
        self.wrong_reads: list[WrongRead] = []
        self.num_tokens = 0
        self._layout = layout
        self._page_size = page_size

    def token_left(self, request: SimRequest, attempt: AttemptId, index: int, reads: tuple[PageRead, ...]) -> None:
        """Record a token and what it was computed from."""
        self.num_tokens += 1
        for read in reads:
            if not all(self._is_own(request, read.position, held) for held in read.held):
                self.wrong_reads.append(WrongRead(request, attempt, index, read))

    def _is_own(self, request: SimRequest, position: int, held: Written | None) -> bool:
        return (
            held is not None
            and held.tenant == request.tenant
            and held.content == request.content(position, self._page_size)
            and held.position == position
            and held.layout == self._layout
        )

    def leaks(self) -> dict[str, frozenset[str]]:
        """Give, by request, the other tenants whose bytes its answer was computed from."""
        leaked: dict[str, frozenset[str]] = {}
        for wrong in self.wrong_reads:
            if wrong.leaked_from:
                before = leaked.get(wrong.request.id, frozenset())
                leaked[wrong.request.id] = before | wrong.leaked_from
        return leaked
