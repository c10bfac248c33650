"""Names of things that live: processes, pools, attempts, passes.

Not for: page tags (``tags.py``).
"""

import secrets
from typing import NewType

from msgspec import Struct

Incarnation = NewType("Incarnation", str)
"""One life of one process's pool: 128 random bits as 32 hex digits, compared for equality only."""

SessionId = NewType("SessionId", str)
"""One life of an incarnation's receiving engine; a rebuilt engine has an id unlike all before."""

TenantId = NewType("TenantId", str)
RequestId = NewType("RequestId", str)
PassId = NewType("PassId", int)
BatchId = NewType("BatchId", int)
Serial = NewType("Serial", int)
"""Which grant of the pool; only grows. It is the generation of all tags of that grant."""

PageIndex = NewType("PageIndex", int)

FORMER_LIFE = Incarnation("0" * 32)
"""Stands for every writer of a pool's memory before this incarnation began."""


class AttemptId(Struct, frozen=True, order=True, array_like=True):
    """One try at a request, minted by a gateway and never from a client's id.

    Units:
        counter: grows by one per attempt within the gateway's incarnation, from 1.
    """

    gateway: Incarnation
    counter: int

    def __str__(self) -> str:
        return f"{self.gateway[:8]}/{self.counter}"


def new_incarnation() -> Incarnation:
    """Draw an incarnation unlike every other."""
    return Incarnation(secrets.token_hex(16))


def new_session() -> SessionId:
    """Draw a session id unlike every other."""
    return SessionId(secrets.token_hex(16))
