"""What nodes say to each other. Every message is resent until answered; every answer may be repeated.

::

    gateway -> decode    Offer      answered by Grant or Refused
    gateway -> prefill   Dispatch   answered by Sent or Failed (to decode)
    prefill -> decode    Sent       answered by Commit or Abort
    prefill -> decode    Failed     answered by Abort
    decode  -> prefill   Abort      answered by Drained or Unknown
    gateway -> decode    Cancel     answered by Ended
    decode  -> gateway   Ended      answered by Closed
    gateway -> both      Floor      the oldest attempt still open; travels with heartbeats

No message carries token ids: prompts travel beside Dispatch and tokens beside passes, in the driver.
"""

from enum import Enum

from msgspec import Struct

from kvfence.core.ids import AttemptId, Incarnation, SessionId
from kvfence.core.manifest import Manifest


class EndReason(Enum):
    """Why an attempt is over; ``gateway/responses.py`` turns each into what the client sees."""

    STOP = "stop"
    LENGTH = "length"
    DOES_NOT_FIT = "does_not_fit"
    QUEUE_FULL = "queue_full"
    SERVER_FULL = "server_full"
    NO_WORKER = "no_worker"
    REFUSED_AT_INTAKE = "refused_at_intake"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    PREEMPTED = "preempted"
    STALE = "stale"
    COUNT_MISMATCH = "count_mismatch"
    LAYOUT_MISMATCH = "layout_mismatch"
    STAMP_MISMATCH = "stamp_mismatch"
    DIGEST_MISMATCH = "digest_mismatch"
    TRANSFER_FAILED = "transfer_failed"
    MODEL_ERROR = "model_error"
    WORKER_LOST = "worker_lost"
    SHUTDOWN = "shutdown"


class Offer(Struct, frozen=True, tag=True):
    """Ask decode for the pages of one attempt. Units: remaining_ns until the attempt's deadline."""

    attempt: AttemptId
    prefill: Incarnation
    num_tokens: int
    max_tokens: int
    remaining_ns: int


class Grant(Struct, frozen=True, tag=True):
    """The pages prefill may write, all under one serial of the granting incarnation.

    ``session``: the life of decode's receiving engine they were granted in; what is posted for them goes there or
    nowhere.
    """

    attempt: AttemptId
    serial: int
    pages: tuple[int, ...]
    layout: str
    session: SessionId = SessionId("")


class Refused(Struct, frozen=True, tag=True):
    """Decode will not take the attempt."""

    attempt: AttemptId
    reason: EndReason


class Dispatch(Struct, frozen=True, tag=True):
    """Ask prefill to fill the granted pages and send them to decode.

    ``salt``: pages are shared between dispatches of one salt alone; empty: with nobody. It stands for a tenant, and
    names none: the gateway draws what it is derived with anew in each life.
    """

    attempt: AttemptId
    decode: Incarnation
    grant: Grant
    num_tokens: int
    remaining_ns: int
    salt: str = ""


class Sent(Struct, frozen=True, tag=True):
    """Every batch succeeded; the manifest says what was written under which grant."""

    attempt: AttemptId
    grant_serial: int
    manifest: Manifest


class Failed(Struct, frozen=True, tag=True):
    """Prefill gives up; the reason is the client's."""

    attempt: AttemptId
    reason: EndReason


class Commit(Struct, frozen=True, tag=True):
    """Decode adopted the pages; prefill's are its own again."""

    attempt: AttemptId


class Abort(Struct, frozen=True, tag=True):
    """Stop writing for this attempt and say when the last write has ended. Quarantines, never frees."""

    attempt: AttemptId


class Drained(Struct, frozen=True, tag=True):
    """No write of this attempt is outstanding and none will be posted."""

    attempt: AttemptId


class Unknown(Struct, frozen=True, tag=True):
    """Nothing more will be posted, but what was posted may still land: only a fence proves its end."""

    attempt: AttemptId


class Cancel(Struct, frozen=True, tag=True):
    """The client no longer wants the attempt."""

    attempt: AttemptId


class Ended(Struct, frozen=True, tag=True):
    """The attempt is over at decode after this many emitted tokens."""

    attempt: AttemptId
    reason: EndReason
    num_emitted: int


class Closed(Struct, frozen=True, tag=True):
    """The gateway has heard Ended."""

    attempt: AttemptId


class Floor(Struct, frozen=True, tag=True):
    """Attempts of the sending gateway below this counter are over for ever."""

    counter: int


Message = (
    Offer
    | Grant
    | Refused
    | Dispatch
    | Sent
    | Failed
    | Commit
    | Abort
    | Drained
    | Unknown
    | Cancel
    | Ended
    | Closed
    | Floor
)


class Envelope(Struct, frozen=True):
    """A message with the lives it is between; refused if either is not current (guard ``peer-is-current``)."""

    sender: Incarnation
    receiver: Incarnation
    message: Message
