"""Messages between addresses: lost, repeated, reordered, or delivered to a successor.

An address is a worker's place, as a port is: what was sent to a process that died reaches the one that took its place.
"""

from msgspec import Struct

from kvfence.protocol.messages import Envelope


class Flight(Struct, frozen=True):
    """One message on its way to whoever lives at an address."""

    address: str
    envelope: Envelope


class Network:
    """What is in flight, oldest first."""

    def __init__(self) -> None:
        self.flights: list[Flight] = []

    def send(self, address: str, envelope: Envelope) -> None:
        """Put a message on its way."""
        self.flights.append(Flight(address, envelope))

    def take(self, number: int, *, keep: bool = False) -> Flight:
        """Take one off the way; with ``keep`` a copy of it stays."""
        return self.flights[number] if keep else self.flights.pop(number)
