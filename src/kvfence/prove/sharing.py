"""What prefill's index finds of a prompt's beginning, for worlds in which prompts of one family begin alike.

The first page of a family is common. An index is a hint: the guards at prefill judge it.
"""

from kvfence.protocol.events import Received
from kvfence.protocol.lots import HeldLot
from kvfence.protocol.messages import Dispatch
from kvfence.prove.effects import own_bytes
from kvfence.prove.world import Tables, World


def received(tables: Tables, world: World, message: int) -> Received:
    """Give the event of a message that arrives at prefill, with what its index found."""
    envelope = tables.steps.messages[message]
    if not isinstance(envelope.message, Dispatch):
        return Received(envelope)
    request = tables.clients[world.clients].asked[envelope.message.attempt.counter - 1]
    held = tables.prefill(world.prefill).node.pool.held.values()
    found = next((entry.lot.serial for entry in held if _begins(tables, world, entry, request)), None)
    return Received(envelope, found=() if found is None else ((found, 1),))


def _begins(tables: Tables, world: World, entry: HeldLot, request: int) -> bool:
    bounds = tables.bounds
    asked, family = bounds.requests[request], bounds.requests[request].family
    alike = [
        own_bytes(tables, number, 0)
        for number, other in enumerate(bounds.requests)
        if family and other.family == family and (other.tenant == asked.tenant or "unsalted" in bounds.setups)
    ]
    if entry.verified:
        return tables.cells[world.prefill_cells][entry.lot.pages[0]].held in alike
    writers = [tables.clients[world.clients].asked[attempt.counter - 1] for attempt in entry.holders]
    return "shared-early" in bounds.setups and any(own_bytes(tables, writer, 0) in alike for writer in writers)
