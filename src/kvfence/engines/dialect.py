"""What differs between engines: which bodies they take, and what their answers say.

Implemented by ``sglang.py`` and ``vllm.py``, and by nothing else: the rest of this package is the same for both.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import httpx
from msgspec import DecodeError, Raw, Struct, ValidationError, json

from kvfence.core.request import Request, without_content
from kvfence.core.settings import Role
from kvfence.engines.measured import Measured
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EngineWords, TokensOut


class Spot(Struct, frozen=True):
    """One worker of a pair, as a hand-off needs it."""

    name: str
    url: str
    host: str
    measured: Measured


class Pair(Struct, frozen=True):
    """Where one attempt goes."""

    prefill: Spot
    decode: Spot


class Order(Struct, frozen=True):
    """One attempt. ``salt``: whose cached pages it may share, on both legs. ``room``: names it at the engines."""

    request: Request
    salt: str
    room: int

    __repr__ = without_content


class Call(Struct, frozen=True):
    """One POST."""

    url: str
    body: bytes

    __repr__ = without_content


class Said(Struct, frozen=True):
    """What prefill's own answer says of the hand-off.

    Units: num_prompt: tokens it computed keys and values for, by its own count; None where it does not say.
    ``params``: what decode needs of it, to be passed on as it is.
    """

    num_prompt: int | None
    first_token: int | None = None
    num_cached: int = 0
    params: Raw | None = None
    reason: EndReason | None = None
    words: EngineWords | None = None

    __repr__ = without_content


class Heard(Struct, frozen=True):
    """One piece of decode's answer. ``reason``: it is the last one. ``words``: what the engine said of a failure."""

    num_prompt: int | None = None
    tokens: TokensOut | None = None
    reason: EndReason | None = None
    words: EngineWords | None = None

    __repr__ = without_content


class Failure(Struct, frozen=True):
    """An error as both engines word it in an event."""

    message: str = ""
    code: int | None = None

    __repr__ = without_content


class Event(Struct, frozen=True):
    """What every event may be: an error in place of an answer."""

    error: Failure | None = None

    __repr__ = without_content


E = TypeVar("E", bound=Event)


def read_event(data: bytes, kind: type[E]) -> E | Heard:
    """Read one event, or give the end that it is: it cannot be read, or is an error."""
    try:
        event = json.decode(data, type=kind)
    except (DecodeError, ValidationError):
        return Heard(reason=EndReason.TRANSFER_FAILED)
    if event.error is not None:
        words = EngineWords(event.error.code or 500, event.error.message)
        return Heard(reason=EndReason.TRANSFER_FAILED, words=words)
    return event


REASONS = {"stop": EndReason.STOP, "length": EndReason.LENGTH}
"""How both say that an answer is whole."""


def sampling_of(request: Request) -> dict[str, object]:
    """Word what both call the same. Stop strings are not named: the gateway looks for them, and ends the stream."""
    sampling = request.sampling
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "ignore_eos": sampling.ignore_eos,
    }


Reader = Callable[[bytes], Heard]
"""Reads the data of one event; a reader belongs to one stream."""


class Dialect(Protocol):
    """One engine's way of speaking. ``at_once``: both legs are asked at the same time, else decode after prefill."""

    @property
    def at_once(self) -> bool:
        """Does decode wait for prefill by itself?"""
        ...

    async def look(self, http: httpx.AsyncClient, url: str, role: Role) -> Measured:
        """Ask a worker for its limits.

        Raises:
            EvidenceError: it does not say them, or has another role.
            httpx.HTTPError: it was not reached.
        """
        ...

    def prefill_call(self, pair: Pair, order: Order) -> Call:
        """Word prefill's leg."""
        ...

    def read_prefill(self, body: bytes) -> Said:
        """Read prefill's whole answer."""
        ...

    def decode_call(self, pair: Pair, order: Order, said: Said | None) -> Call:
        """Word decode's leg, which is streamed. ``said``: None where both are asked at once."""
        ...

    def abort_call(self, spot: Spot, order: Order) -> Call | None:
        """Word the end of a leg that is still open, to be sent before it is closed; None: closing it says enough."""
        ...

    def reader(self, order: Order) -> Reader:
        """Begin to read decode's stream."""
        ...
