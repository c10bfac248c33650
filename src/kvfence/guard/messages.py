"""What the two guards of a pair say to each other: the protocol's messages, cut to what an engine lets a plug-in see.

Each travels as two frames, a code and a body, wherever the engine's own messages travel. A body that is not by a
holder of the key is no message.
"""

import msgspec
from msgspec import Struct

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.guard.key import Key

VERSION = 3
"""Raised when a message changes; prefill sends nothing to a decode of another version."""


class _Introduction(Struct, frozen=True):
    """Who is there, with which limits.

    Units: tokens. ``layout``: everything by which bytes could mean different things.
    """

    version: int
    sender: Incarnation
    mode: str
    layout: str
    pool_tokens: int
    context_tokens: int


class Hello(_Introduction, frozen=True, tag=True):
    """Decode to prefill, once a session."""


class Welcome(_Introduction, frozen=True, tag=True):
    """Prefill's answer to ``Hello``."""


class Offer(Struct, frozen=True, tag=True):
    """Decode to prefill, with the pages: what is expected of this attempt.

    ``room``: the engine's name for the hand-off, which a client may choose; only ``attempt`` is unique.
    ``prefix_tokens``: of ``num_tokens``, what decode has already.
    """

    attempt: AttemptId
    room: int
    num_tokens: int
    prefix_tokens: int
    num_pages: int


class Promise(Struct, frozen=True, tag=True):
    """Prefill to decode, before the engine says that it is done: what was sent.

    ``digest``: over the bytes of all pages, in order, as prefill read them after its last pass.
    """

    attempt: AttemptId
    room: int
    sender: Incarnation
    num_tokens: int
    num_pages: int
    layout: str
    digest: str
    pool_tokens: int
    context_tokens: int


class RefusedAtPrefill(Struct, frozen=True, tag=True):
    """Prefill to decode: this room will never be sent. ``message``: the engine's own words.

    ``attempt``: whose; None to every decode that it knows, while nobody has offered pages in this room.
    """

    room: int
    status: int
    message: str
    attempt: AttemptId | None = None


class Revoke(Struct, frozen=True, tag=True):
    """Decode to prefill, until answered: nobody waits for this attempt any more; say when its last write has ended.

    ``place``: which of its prefill ranks decode asks, given back in the answer.
    """

    attempt: AttemptId
    room: int
    place: int


class Drained(Struct, frozen=True, tag=True):
    """Prefill's answer: nothing of this attempt is being written, and nothing will be."""

    attempt: AttemptId
    place: int


class Unknown(Struct, frozen=True, tag=True):
    """Prefill's answer: a write towards this decode has failed, so that nobody can say when it ends."""

    attempt: AttemptId
    place: int


Message = Hello | Welcome | Offer | Promise | RefusedAtPrefill | Revoke | Drained | Unknown

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Message)


def seal(key: Key, message: Message) -> tuple[bytes, bytes]:
    """Give the code and the body of a message."""
    body = _ENCODER.encode(message)
    return key.mac(body), body


def unseal(key: Key, mac: bytes, body: bytes) -> Message | None:
    """Give the message; None where the code is not by the key or the body is none."""
    if not key.holds(body, mac):
        return None
    try:
        return _DECODER.decode(body)
    except msgspec.MsgspecError:
        return None
