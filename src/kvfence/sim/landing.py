"""How posted writes land, transport by transport, and what a transfer can do wrong.

AT_RECEIPT: the receiver checks each record and copies it in one step. PEER_EXIT: the writer's own process copies,
part by part, for as long as it lives. NEW_SESSION: bytes on their way outlive their sender and land until the
receiver's engine is rebuilt.
"""

from collections.abc import Callable, Iterator

from kvfence.core.pages import PageState
from kvfence.protocol.transitions import Fence
from kvfence.sim.decode import Decode
from kvfence.sim.memory import PARTS, PageWrite
from kvfence.sim.process import Action, Surroundings


class Landing:
    """Lands what is posted and judges where it lands. Holds: ``changed_sources``, writes that read a re-used page."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.changed_sources: list[str] = []
        self.closed_sessions: set[str] = set()

    def actions(self, target_of: Callable[[PageWrite], Decode]) -> Iterator[Action]:
        """Give every write's next part."""
        self.around.writes = [write for write in self.around.writes if not write.ended]
        for write in self.around.writes:
            self._draw_faults(write, target_of(write))
            if not write.stalled:
                yield Action("land", lambda w=write: self.land(w, target_of(w)))  # type: ignore[misc]

    def _draw_faults(self, write: PageWrite, decode: Decode) -> None:
        rng, faults = self.around.rng, self.around.setup.faults
        if rng is None or write.drawn or self.around.calm:
            return
        write.drawn = True
        write.corrupt = rng.random() < faults.corrupt
        if write.corrupt:
            self.around.note("corrupt")
        if rng.random() < faults.tear and self.around.setup.fence is not Fence.AT_RECEIPT:
            write.stops_at = rng.randrange(PARTS)
            self.around.note("tear")
        if rng.random() < faults.misdirect:
            write.misdirected = True
            self.around.note("misdirect")
            in_use = sorted({row.page for sequence in decode.sequences.values() for row in sequence.rows})
            write.target.page = rng.choice(in_use or range(len(decode.memory)))

    def land(self, write: PageWrite, decode: Decode, parts: int = 1) -> None:
        """Land the next parts of a write, or refuse it where the transport can."""
        if self._refused(write, decode):
            write.refused = True
            return
        whole = write.misdirected or self.around.setup.fence is Fence.AT_RECEIPT
        for _ in range(PARTS if whole else parts):
            if not write.ended:
                self._land_part(write, decode)

    def _refused(self, write: PageWrite, decode: Decode) -> bool:
        target = write.target
        if self.around.setup.fence is Fence.NEW_SESSION:
            return target.session in self.closed_sessions
        if self.around.setup.fence is not Fence.AT_RECEIPT:
            return False
        return not _is_granted(write, decode)

    def _land_part(self, write: PageWrite, decode: Decode) -> None:
        page = write.target.page
        head = write.source.head
        if head != write.source_tag and head is not None and head.incarnation == write.target.writer:
            self.changed_sources.append(f"a write of {write.attempt} read a re-used page")
        quarantined = decode.pages.state(page) is PageState.QUARANTINED
        if not (write.misdirected or quarantined or _is_granted(write, decode)):
            self.around.stray_writes.append(f"a write of {write.attempt} landed in page {page}, no longer its own")
        decode.memory[page].land(write.next_part, write.source, corrupt=write.corrupt)
        write.next_part += 1

    def drop(self, gone: Callable[[PageWrite], bool]) -> None:
        """End writes that can land no more."""
        for write in self.around.writes:
            if gone(write):
                write.refused = True


def _is_granted(write: PageWrite, decode: Decode) -> bool:
    page, target = write.target.page, write.target
    granted = decode.pages.state(page) is PageState.GRANTED and decode.pages.serial(page) == target.grant_serial
    return granted and target.decode == decode.incarnation
