"""The legal page moves and hand-off moves, as data. Docs, tests, the ledger and the search read these tables.

Nothing else may change who owns a page.
"""

from enum import Enum

from kvfence.core.pages import PageState

FREE, GRANTED, SEALED, ADOPTED, QUARANTINED = PageState


class PageMove(Enum):
    """The six moves of a page.

    GRANT: a new serial, so new tags. SEAL: no more writes; the stamp is final. ADOPT: remotely written pages
    only, after verification. RELEASE: the owner is done, every operation on the pages has ended (posted writes
    and forward passes), and they never had a remote writer or that writer is drained. REVOKE: the holder goes
    while a writer may be active. FENCE: the sender said *drained*, or this transport's fence has happened.
    """

    __hash__ = object.__hash__  # as of ``PageState``

    GRANT = "grant"
    SEAL = "seal"
    ADOPT = "adopt"
    RELEASE = "release"
    REVOKE = "revoke"
    FENCE = "fence"


PAGE_MOVES: dict[PageMove, tuple[frozenset[PageState], PageState]] = {
    PageMove.GRANT: (frozenset({FREE}), GRANTED),
    PageMove.SEAL: (frozenset({GRANTED}), SEALED),
    PageMove.ADOPT: (frozenset({SEALED}), ADOPTED),
    PageMove.RELEASE: (frozenset({GRANTED, SEALED, ADOPTED}), FREE),
    PageMove.REVOKE: (frozenset({GRANTED, SEALED, ADOPTED}), QUARANTINED),
    PageMove.FENCE: (frozenset({QUARANTINED}), FREE),
}


class Fence(Enum):
    """What proves, on a transport, that a revoked destination page is quiet.

    AT_RECEIPT: the receiver checks every write as it lands. PEER_EXIT: the writer's process was reaped.
    NEW_SESSION: the owner rebuilt its receiving engine. NONE: nothing does; such a transport is refused at start.
    """

    AT_RECEIPT = "at_receipt"
    PEER_EXIT = "peer_exit"
    NEW_SESSION = "new_session"
    NONE = "none"


class DecodePhase(Enum):
    """Where a hand-off stands at decode."""

    __hash__ = object.__hash__  # as of ``PageState``

    WAITING = "waiting"  # offered, no pages yet
    GRANTED = "granted"  # prefill may write
    VERIFYING = "verifying"  # prefill said Sent; seal checks the bytes
    RUNNING = "running"  # adopted; passes emit tokens
    REVOKED = "revoked"  # given up; the remotely written pages are quarantined
    CLOSED = "closed"  # nothing held; a tombstone until the floor passes


class PrefillPhase(Enum):
    """Where a hand-off stands at prefill."""

    __hash__ = object.__hash__  # as of ``PageState``

    WAITING = "waiting"  # dispatched, no pages yet
    RUNNING = "running"  # chunks are computed, sealed and sent
    SENT = "sent"  # every batch succeeded; decode decides
    FAILED = "failed"  # said Failed; waits for decode's Abort
    ABORTING = "aborting"  # decode said Abort while a batch or pass is outstanding
    CLOSED = "closed"  # nothing held; a tombstone until the floor passes


class GatewayPhase(Enum):
    """Where an attempt stands at its gateway."""

    __hash__ = object.__hash__  # as of ``PageState``

    OFFERED = "offered"  # decode has been asked for pages
    DISPATCHED = "dispatched"  # prefill may be writing
    STREAMING = "streaming"  # the first token arrived: the hand-off has settled
    CLOSED = "closed"


DECODE_MOVES: dict[DecodePhase, frozenset[DecodePhase]] = {
    DecodePhase.WAITING: frozenset({DecodePhase.GRANTED, DecodePhase.CLOSED}),
    DecodePhase.GRANTED: frozenset({DecodePhase.VERIFYING, DecodePhase.REVOKED}),
    DecodePhase.VERIFYING: frozenset({DecodePhase.RUNNING, DecodePhase.REVOKED}),
    DecodePhase.RUNNING: frozenset({DecodePhase.CLOSED}),
    DecodePhase.REVOKED: frozenset({DecodePhase.CLOSED}),
    DecodePhase.CLOSED: frozenset(),
}

PREFILL_MOVES: dict[PrefillPhase, frozenset[PrefillPhase]] = {
    PrefillPhase.WAITING: frozenset({PrefillPhase.RUNNING, PrefillPhase.FAILED, PrefillPhase.CLOSED}),
    PrefillPhase.RUNNING: frozenset(
        {PrefillPhase.SENT, PrefillPhase.FAILED, PrefillPhase.ABORTING, PrefillPhase.CLOSED}
    ),
    PrefillPhase.SENT: frozenset({PrefillPhase.CLOSED}),
    PrefillPhase.FAILED: frozenset({PrefillPhase.ABORTING, PrefillPhase.CLOSED}),
    PrefillPhase.ABORTING: frozenset({PrefillPhase.CLOSED}),
    PrefillPhase.CLOSED: frozenset(),
}

GATEWAY_MOVES: dict[GatewayPhase, frozenset[GatewayPhase]] = {
    GatewayPhase.OFFERED: frozenset({GatewayPhase.DISPATCHED, GatewayPhase.CLOSED}),
    GatewayPhase.DISPATCHED: frozenset({GatewayPhase.STREAMING, GatewayPhase.CLOSED}),
    GatewayPhase.STREAMING: frozenset({GatewayPhase.CLOSED}),
    GatewayPhase.CLOSED: frozenset(),
}
