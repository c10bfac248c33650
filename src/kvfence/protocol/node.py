"""What every node has: its own life, its peers, its gateways' floors; and the checks of every message.

Not for: hand-offs; each node keeps its own kind.
"""

from msgspec import Struct

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.protocol.messages import Envelope
from kvfence.protocol.turn import Turn


class Lives(Struct, frozen=True):
    """Who is current. ``writers``: the lives that may write into this node's pool, dead but unreaped ones included."""

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


def is_current(turn: Turn, lives: Lives, envelope: Envelope) -> bool:
    """Ask ``peer-is-current``: both lives named in the envelope are the ones that live now."""
    holds = envelope.receiver == lives.incarnation and envelope.sender in lives.peers
    attempt = getattr(envelope.message, "attempt", None)
    return turn.ask("peer-is-current", attempt, holds)
