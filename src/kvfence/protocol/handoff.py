"""What each node remembers of one attempt. Phases change only along the tables of ``transitions.py``."""

from itertools import chain
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.errors import LocalProtocolError
from kvfence.core.ids import AttemptId, BatchId, Incarnation, PassId, RequestId
from kvfence.core.manifest import Manifest
from kvfence.protocol.lots import Lot
from kvfence.protocol.messages import EndReason, Grant
from kvfence.protocol.transitions import (
    DECODE_MOVES,
    GATEWAY_MOVES,
    PREFILL_MOVES,
    DecodePhase,
    GatewayPhase,
    PrefillPhase,
)


class DecodeHandoff(Struct, frozen=True):
    """One attempt at decode.

    Owner: ``remote`` is written by prefill until Sent, then by nobody; ``own`` by decode alone.
    ``ending``, ``bad``: how it will end, and which pages did not match, once its passes have ended.
    ``heard``: the gateway answered Ended. ``abort_answered``: prefill answered Abort.
    """

    attempt: AttemptId
    prefill: Incarnation
    num_tokens: int
    max_tokens: int
    phase: DecodePhase = DecodePhase.WAITING
    remote: Lot | None = None
    own: tuple[Lot, ...] = ()
    manifest: Manifest | None = None
    order: int = 0
    num_emitted: int = 0
    passes: frozenset[PassId] = frozenset()
    ending: EndReason | None = None
    bad: frozenset[int] = frozenset()
    adopted: bool = False
    abort_answered: bool = False
    heard: bool = False


class PrefillHandoff(Struct, frozen=True):
    """One attempt at prefill.

    ``lot``: the pages it writes itself. ``shared``: those before them, written by earlier hand-offs of its salt.
    ``found``: (serial, number of pages) where the driver saw such pages when the dispatch came.
    Units: num_sealed, num_posted, num_landed count pages of the prompt, in order, shared ones included. num_known: own
    pages, from the first, whose like others of this salt share already.
    ``committed``: decode verified and took it. ``unknown``: a batch ended in non-success, so Drained may never be said.
    ``source_quiet``: no failed batch may still read the source. ``answer``: Abort waits for Drained or Unknown.
    """

    attempt: AttemptId
    decode: Incarnation
    num_tokens: int
    phase: PrefillPhase = PrefillPhase.WAITING
    grant: Grant | None = None
    lot: Lot | None = None
    salt: str = ""
    found: tuple[tuple[int, int], ...] = ()
    shared: tuple[Lot, ...] = ()
    num_known: int = 0
    committed: bool = False
    num_sealed: int = 0
    num_posted: int = 0
    num_landed: int = 0
    batches: tuple[tuple[BatchId, int], ...] = ()
    passes: frozenset[PassId] = frozenset()
    computed: bool = False
    digest: str = ""
    reason: EndReason | None = None
    unknown: bool = False
    source_quiet: bool = True
    answer: bool = False

    @property
    def lots(self) -> tuple[Lot, ...]:
        """All lots it holds, in prompt order; none once it let go."""
        return (*self.shared, self.lot) if self.lot is not None else ()

    @property
    def num_shared(self) -> int:
        """Pages of the prompt that it does not write."""
        return sum(len(lot.pages) for lot in self.shared)

    @property
    def pages(self) -> tuple[int, ...]:
        """The prompt's pages, in order."""
        return tuple(chain.from_iterable(lot.pages for lot in self.lots))


class GatewayHandoff(Struct, frozen=True):
    """One attempt at its gateway.

    ``timer``: the request's first attempt, whose deadline holds for those that follow a preemption.
    ``gap_seen``: decode said Ended before all tokens had come.
    ``answered``: its client has heard the end; the record waits for decode.
    """

    attempt: AttemptId
    request: RequestId
    prefill: Incarnation
    decode: Incarnation
    num_tokens: int
    max_tokens: int
    remaining_ns: int
    timer: AttemptId
    salt: str = ""
    phase: GatewayPhase = GatewayPhase.OFFERED
    grant: Grant | None = None
    num_emitted: int = 0
    cancelled: bool = False
    cancel_sent: bool = False
    gap_seen: bool = False
    answered: bool = False


H = TypeVar("H", DecodeHandoff, PrefillHandoff, GatewayHandoff)


def advance(handoff: H, phase: DecodePhase | PrefillPhase | GatewayPhase) -> H:
    """Move a hand-off along its table; an illegal move is our own bug."""
    if isinstance(handoff, DecodeHandoff):
        legal = isinstance(phase, DecodePhase) and phase in DECODE_MOVES[handoff.phase]
    elif isinstance(handoff, PrefillHandoff):
        legal = isinstance(phase, PrefillPhase) and phase in PREFILL_MOVES[handoff.phase]
    else:
        legal = isinstance(phase, GatewayPhase) and phase in GATEWAY_MOVES[handoff.phase]
    if not legal:
        raise LocalProtocolError(f"illegal hand-off move {handoff.phase.value} -> {phase.value}")
    return replace(handoff, phase=phase)
