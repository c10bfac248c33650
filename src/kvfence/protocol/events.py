"""What happens to a node: messages that arrive and facts its driver observed.

Facts only. An event says what was seen (``Verified``: these pages do not match); ``step`` decides.
"""

from msgspec import Struct

from kvfence.core.ids import AttemptId, BatchId, Incarnation, PassId, RequestId, SessionId
from kvfence.protocol.messages import EndReason, Envelope


class Received(Struct, frozen=True, tag=True):
    """A message arrived.

    ``refusal``: the intake in front of this node already refused what the message asks for (a prompt it cannot
    run). The queue must ask for it: guard ``refusal-is-final``.
    ``found``: with a Dispatch, where the driver knows the prompt's first pages, as (serial, number of pages). A hint:
    guards ``tenant-salt`` and ``verified-before-shared`` judge it.
    ``num_known``: with a Commit, how many of the attempt's own pages, from the first, the driver knows elsewhere.
    """

    envelope: Envelope
    refusal: EndReason | None = None
    found: tuple[tuple[int, int], ...] = ()
    num_known: int = 0


class PeerUp(Struct, frozen=True, tag=True):
    """The supervisor introduced a peer. ``writes``: it can write into this node's pool."""

    peer: Incarnation
    writes: bool


class PeerGone(Struct, frozen=True, tag=True):
    """A peer is dead or replaced. ``reaped``: the supervisor saw its process end, so it writes no more."""

    peer: Incarnation
    reaped: bool


class PeerSilent(Struct, frozen=True, tag=True):
    """A worker has not been heard for so long that its clients are told; it may live, and what it holds stays held."""

    peer: Incarnation


class SessionRebuilt(Struct, frozen=True, tag=True):
    """This node's own receiving engine was destroyed and rebuilt; the id is unlike all before."""

    session: SessionId


class DeadlinePassed(Struct, frozen=True, tag=True):
    """The attempt's time is over."""

    attempt: AttemptId


class FloorMoved(Struct, frozen=True, tag=True):
    """A gateway's oldest open attempt is now this one."""

    gateway: Incarnation
    counter: int


class Resend(Struct, frozen=True, tag=True):
    """Time to repeat every message of this attempt that is still unanswered."""

    attempt: AttemptId


class PassBegan(Struct, frozen=True, tag=True):
    """The driver is about to run one forward pass over these attempts.

    ``grow``: pages each attempt needs before it (decode only).
    """

    id: PassId
    attempts: tuple[AttemptId, ...]
    grow: tuple[tuple[AttemptId, int], ...] = ()


class PassEnded(Struct, frozen=True, tag=True):
    """The pass is over.

    ``bad``: pages whose head was not the expected one before or after it, by attempt.
    ``finished``: attempts whose last token (decode) or whose whole prompt (prefill) it computed.
    ``failed``: attempts the model could not compute.
    """

    id: PassId
    bad: tuple[tuple[AttemptId, tuple[int, ...]], ...] = ()
    finished: tuple[tuple[AttemptId, EndReason], ...] = ()
    failed: tuple[AttemptId, ...] = ()


class PagesSealed(Struct, frozen=True, tag=True):
    """Prefill's first ``num_pages`` pages of the attempt carry their final stamp.

    ``tails_zeroed``: the slots behind the last valid token are zero. ``digest``: over the stamps so far, in order.
    """

    attempt: AttemptId
    num_pages: int
    tails_zeroed: bool
    digest: str


class BatchEnded(Struct, frozen=True, tag=True):
    """A posted batch returned.

    ``success``: every byte landed. ``source_quiet``: the transport reads the source no more, whatever the outcome.
    """

    attempt: AttemptId
    batch: BatchId
    success: bool
    source_quiet: bool


class Verified(Struct, frozen=True, tag=True):
    """Seal compared the landed pages with the manifest.

    ``bad_stamps``: pages whose head or tail is not the promised one. ``digests_match``: every page's bytes and
    the digest over all stamps. ``finished``: the first token, which came along, ends the sequence.
    """

    attempt: AttemptId
    bad_stamps: tuple[int, ...]
    digests_match: bool
    finished: EndReason | None = None


class Submit(Struct, frozen=True, tag=True):
    """The gateway accepted a request and placed it.

    ``salt``: whose pages it may share; empty: nobody's. ``timer``: the attempt that this one continues, if any.
    """

    request: RequestId
    num_tokens: int
    max_tokens: int
    prefill: Incarnation
    decode: Incarnation
    remaining_ns: int
    salt: str = ""
    timer: AttemptId | None = None


class TokensArrived(Struct, frozen=True, tag=True):
    """Decode let this many tokens of an attempt out, from this index."""

    sender: Incarnation
    attempt: AttemptId
    first_index: int
    num_tokens: int


class ClientGone(Struct, frozen=True, tag=True):
    """The client disconnected or cancelled."""

    request: RequestId


Event = (
    Received
    | PeerUp
    | PeerGone
    | PeerSilent
    | SessionRebuilt
    | DeadlinePassed
    | FloorMoved
    | Resend
    | PassBegan
    | PassEnded
    | PagesSealed
    | BatchEnded
    | Verified
    | Submit
    | TokensArrived
    | ClientGone
)
