"""What one control frame holds: a protocol message, and beside it what ``step`` never sees.

Prompts travel beside Dispatch, the first token with the sampler's state beside Sent, tokens and sessions beside
nothing.
"""

from msgspec import Struct

from kvfence.core.ids import AttemptId, Incarnation, SessionId
from kvfence.core.request import Past, SamplingParams, TokenLogprob, without_content
from kvfence.protocol.messages import Envelope


class Prompt(Struct, frozen=True, tag=True):
    """The tokens to prefill. Units: num_generated: how many of them an earlier attempt generated."""

    token_ids: list[int]
    sampling: SamplingParams
    num_generated: int

    __repr__ = without_content


class FirstToken(Struct, frozen=True, tag=True):
    """The token prefill sampled, with the sampler's state; it leaves only after adoption.

    ``past``: what choices read of the tokens before it. ``complete``: the answer's grammar allows nothing after it.
    ``num_cached``: tokens of the prompt that were found in shared pages.
    """

    token_id: int
    sampling: SamplingParams
    num_generated: int
    past: Past = Past()
    logprob: TokenLogprob | None = None
    complete: bool = False
    num_cached: int = 0

    __repr__ = without_content


class TokenRow(Struct, frozen=True, array_like=True):
    """Tokens of one attempt, from this index. ``logprobs``: one for each where they were asked for, else none.

    ``num_cached``: with the first, tokens of the prompt that were found in shared pages.
    """

    attempt: AttemptId
    first_index: int
    token_ids: list[int]
    logprobs: list[TokenLogprob] = []
    num_cached: int = 0

    __repr__ = without_content


class Tokens(Struct, frozen=True, tag=True):
    """The tokens that left decode in one pass."""

    rows: list[TokenRow]


class Facts(Struct, frozen=True, array_like=True):
    """What the sender knows of the way of the attempt this frame is about; for logs and spans alone.

    Units: ages_us: how long ago each mark was when the frame was sent. ``refusals``: guards, as ``guard@place``.
    """

    ages_us: dict[str, int]
    refusals: tuple[str, ...] = ()


class SessionOpened(Struct, frozen=True, tag=True):
    """Decode's receiving engine has a new life; what is granted from now on is written there.

    Units: base: address of the pool in the receiving process. Repeated with every heartbeat.
    """

    session: SessionId
    host: str
    port: int
    base: int
    nbytes: int


class Frame(Struct, frozen=True):
    """One control frame."""

    sender: Incarnation
    envelope: Envelope | None = None
    payload: Prompt | FirstToken | Tokens | SessionOpened | None = None
    facts: Facts | None = None
