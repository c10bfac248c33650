"""What a node tells its driver to do. The driver does nothing to pages or tokens unless a command says so."""

from msgspec import Struct

from kvfence.core.ids import AttemptId, BatchId, Incarnation, PassId, RequestId, SessionId
from kvfence.core.manifest import Manifest
from kvfence.protocol.lots import Lot
from kvfence.protocol.messages import EndReason, Message
from kvfence.protocol.transitions import PageMove

FIRST_TOKEN = PassId(0)
"""Stands for prefill's pass in the ``Emit`` that lets the first token out at adoption."""


class Send(Struct, frozen=True, tag=True):
    """Send a message to a peer."""

    to: Incarnation
    message: Message


class Move(Struct, frozen=True, tag=True):
    """Move pages of one grant in the ledger."""

    move: PageMove
    serial: int
    pages: tuple[int, ...]


class StartTimer(Struct, frozen=True, tag=True):
    """Feed ``DeadlinePassed`` after this long."""

    attempt: AttemptId
    remaining_ns: int


class StartPrefill(Struct, frozen=True, tag=True):
    """The prompt may be computed into these pages, which this node holds under ``serial``.

    ``shared``: the pages before them; they hold the prompt's first tokens already and are never written.
    """

    attempt: AttemptId
    serial: int
    pages: tuple[int, ...]
    num_tokens: int
    shared: tuple[Lot, ...] = ()


class Share(Struct, frozen=True, tag=True):
    """Pages of this lot stay when their writer is done: they hold the prompt's pages from ``first``.

    Others of the same salt may share them for as long as the serial is not released or revoked.
    """

    attempt: AttemptId
    serial: int
    first: int
    num_pages: int


class Post(Struct, frozen=True, tag=True):
    """Write sealed pages into the granted ones; report ``BatchEnded``. Never re-posted within an attempt.

    ``session``: the receiving engine the pages were granted in. Where the transport's fence is NEW_SESSION, a write
    for another one must fail: else a rebuilt engine would take what was promised to its predecessor.
    """

    attempt: AttemptId
    batch: BatchId
    decode: Incarnation
    source: tuple[int, ...]
    destination: tuple[int, ...]
    session: SessionId = SessionId("")


class Verify(Struct, frozen=True, tag=True):
    """Compare the landed pages with the manifest; report ``Verified``."""

    attempt: AttemptId
    pages: tuple[int, ...]
    manifest: Manifest


class Adopt(Struct, frozen=True, tag=True):
    """The pages are the sequence's: copy a partly filled last page to ``own``, then let it run.

    ``own`` is granted to decode itself under ``own_serial``.
    """

    attempt: AttemptId
    pages: tuple[int, ...]
    own_serial: int
    own: tuple[int, ...]
    manifest: Manifest


class Grew(Struct, frozen=True, tag=True):
    """These further pages are the sequence's to write, granted under ``serial``."""

    attempt: AttemptId
    serial: int
    pages: tuple[int, ...]


class RunPass(Struct, frozen=True, tag=True):
    """Run the pass over these attempts, which may be fewer than were asked for."""

    id: PassId
    attempts: tuple[AttemptId, ...]


class Emit(Struct, frozen=True, tag=True):
    """The tokens this pass computed for these attempts may leave. Nothing else lets a token out."""

    id: PassId
    attempts: tuple[AttemptId, ...]


class Stop(Struct, frozen=True, tag=True):
    """Forget the attempt: no further chunk, pass or batch of it."""

    attempt: AttemptId


class Deliver(Struct, frozen=True, tag=True):
    """Pass tokens on to the client of this request."""

    request: RequestId
    attempt: AttemptId
    num_tokens: int


class Resubmit(Struct, frozen=True, tag=True):
    """The request goes on as a new attempt, prompt plus generated tokens: place it anew and feed its ``Submit``.

    ``timer``: the attempt whose deadline holds on.
    """

    request: RequestId
    old: AttemptId
    num_tokens: int
    max_tokens: int
    remaining_ns: int
    timer: AttemptId
    salt: str = ""


class Finish(Struct, frozen=True, tag=True):
    """Answer the client of this request; nothing more of it will come."""

    request: RequestId
    reason: EndReason


Command = (
    Send
    | Move
    | StartTimer
    | StartPrefill
    | Share
    | Post
    | Verify
    | Adopt
    | Grew
    | RunPass
    | Emit
    | Stop
    | Deliver
    | Resubmit
    | Finish
)
