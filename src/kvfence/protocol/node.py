"""What every node has: its own life, its peers, its gateways' floors; and the checks of every message.

Not for: hand-offs; each node keeps its own kind.
"""

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.protocol.messages import Envelope
from kvfence.protocol.turn import Turn

FLOOR_GONE = 1 << 63
"""The floor of a gateway that is gone: all its attempts are over for ever."""


class Lives(Struct, frozen=True):
    """Who is current. ``writers``: the lives that may write into this node's pool, dead but unfenced ones included."""

    incarnation: Incarnation
    peers: frozenset[Incarnation] = frozenset()
    writers: frozenset[Incarnation] = frozenset()
    floors: dict[Incarnation, int] = {}

    def floor(self, gateway: Incarnation) -> int:
        """The oldest attempt of this gateway that may still be open."""
        return self.floors.get(gateway, 0)

    def below_floor(self, attempt: AttemptId) -> bool:
        """Is this attempt over for ever?"""
        return attempt.counter < self.floor(attempt.gateway)

    def raised(self, gateway: Incarnation, counter: int) -> "Lives":
        """Move a gateway's floor up; it never moves down."""
        return replace(self, floors={**self.floors, gateway: max(counter, self.floor(gateway))})

    def without(self, peer: Incarnation) -> "Lives":
        """A peer is gone: it speaks no more, and where it is a gateway, its attempts are over."""
        return replace(self, peers=self.peers - {peer}).raised(peer, FLOOR_GONE)


def is_current(turn: Turn, lives: Lives, envelope: Envelope) -> bool:
    """Ask ``peer-is-current``: both lives named in the envelope are the ones that live now."""
    holds = envelope.receiver == lives.incarnation and envelope.sender in lives.peers
    attempt = getattr(envelope.message, "attempt", None)
    return turn.ask("peer-is-current", attempt, holds)
