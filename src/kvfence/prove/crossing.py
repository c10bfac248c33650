"""Several traces of one run held against each other: what was received was sent, what was delivered was let out.

Sound against loss, repetition and delay, which are no faults of a trace: only that nobody received what nobody sent.
Floors are left out: they travel with heartbeats, and no step sends them.
Units: 8 bytes for each message sent and 16 for each received, whatever they hold; compared share by share.
"""

from array import array
from collections.abc import Collection, Sequence

from msgspec import Struct

from kvfence.core.ids import Incarnation
from kvfence.protocol.commands import FIRST_TOKEN, Command, Emit, Send
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import Event, Received, TokensArrived
from kvfence.protocol.messages import Floor
from kvfence.protocol.step import Node

SHARES = 64
"""So many times less than all is compared at once."""

_STEP_BITS, _TRACE_BITS = 44, 10
TRACES_MAX = 1 << _TRACE_BITS
_ALL_BITS = (1 << 64) - 1


class Unsent(Struct, frozen=True):
    """Something received that its sender never sent: at which step, and whose trace should show it."""

    step: int
    sender: int


class Crossing:
    """What was sent and received between the lives whose traces are at hand, kept as hashes.

    Holds: ``num_elsewhere``, messages received from lives whose traces are not at hand.
    """

    def __init__(self, lives: Sequence[str]) -> None:
        self.num_elsewhere = 0
        self._numbers = {life: number for number, life in enumerate(lives)}
        self._sent = [array("Q") for _ in range(SHARES)]
        self._received = [array("Q") for _ in range(SHARES)]
        self._where = [array("Q") for _ in range(SHARES)]

    def note(self, trace: int, number: int, before: Node, event: Event, commands: Sequence[Command]) -> None:
        """Keep what one step received and sent. ``number``: of the step."""
        for command in commands:
            if isinstance(command, Send):
                if command.to in self._numbers:
                    self._send(before.lives.incarnation, command.to, command.message)
            elif isinstance(command, Emit) and isinstance(before, DecodeNode):
                for attempt in command.attempts:
                    handoff = before.handoffs.get(attempt)
                    index = 0 if command.id == FIRST_TOKEN or handoff is None else handoff.num_emitted
                    self._send(before.lives.incarnation, attempt, index)
        place = number << _TRACE_BITS | trace
        if isinstance(event, Received):
            envelope = event.envelope
            if not isinstance(envelope.message, Floor):
                self._receive(place, envelope.sender, envelope.receiver, envelope.message)
        elif isinstance(event, TokensArrived):
            for index in range(event.first_index, event.first_index + event.num_tokens):
                self._receive(place, event.sender, event.attempt, index)

    def sent(self, sender: Incarnation, word: object) -> None:
        """Keep what a plug-in said; to whom it went it need not know."""
        self._send(sender, word)

    def received(self, trace: int, number: int, sender: Incarnation, word: object) -> None:
        """Keep what a plug-in heard."""
        self._receive(number << _TRACE_BITS | trace, sender, word)

    def _send(self, *what: object) -> None:
        digest = hash(what) & _ALL_BITS
        self._sent[digest % SHARES].append(digest)

    def _receive(self, place: int, sender: str, *what: object) -> None:
        source = self._numbers.get(sender)
        if source is None:
            self.num_elsewhere += 1
            return
        digest = hash((sender, *what)) & _ALL_BITS
        self._received[digest % SHARES].append(digest)
        self._where[digest % SHARES].append(source << _STEP_BITS + _TRACE_BITS | place)

    def unsent(self, complete: Collection[int]) -> tuple[dict[int, Unsent], int]:
        """Give, by receiver, the first that nobody sent, and how many were compared.

        ``complete``: the traces that tell all that was sent.
        """
        found: dict[int, Unsent] = {}
        num_compared = 0
        for sent, received, where in zip(self._sent, self._received, self._where, strict=True):
            known = set(sent)
            for digest, place in zip(received, where, strict=True):
                sender, number = divmod(place >> _TRACE_BITS, 1 << _STEP_BITS)
                if sender not in complete:
                    continue
                num_compared += 1
                receiver = place % TRACES_MAX
                if digest not in known and (receiver not in found or number < found[receiver].step):
                    found[receiver] = Unsent(number, sender)
        return found, num_compared
