"""A stray write that lands in pieces: its head in one tenant's page, its bytes when the page is another's."""

from collections.abc import Callable

from kvfence.core.errors import LocalProtocolError
from kvfence.core.ids import RequestId, TenantId
from kvfence.protocol.admission import Capacity
from kvfence.protocol.guards import Rules
from kvfence.protocol.handoff import DecodeHandoff
from kvfence.protocol.transitions import DecodePhase
from kvfence.sim.memory import PageWrite
from kvfence.sim.process import Setup
from kvfence.sim.workload import SimRequest
from kvfence.sim.world import World

CAPACITY = Capacity(page_size=4, context_tokens=24, prefill_pages=6, decode_pages=8)
WRITER, VICTIM, NEXT = (
    SimRequest(RequestId(name), TenantId(name), num_tokens, 8)
    for name, num_tokens in (("writer", 4), ("victim", 4), ("next", 8))
)


def until(world: World, reached: Callable[[], bool]) -> None:
    """Do what comes next, in order, until something is reached."""
    for _ in range(500):
        if reached():
            return
        world.advance()
    raise LocalProtocolError("the course was not reached")


def stray_in_pieces(rules: Rules) -> World:
    """The head lands in the victim's page, the victim ends, the page goes on to the next, the bytes land."""
    world = World(Setup(rules, CAPACITY, concurrency=3), [VICTIM])
    decode = world.cluster.decode
    until(world, lambda: any(s.num_new == 2 for s in decode.sequences.values()))
    own = next(iter(decode.sequences.values())).rows[-1].page
    world.add(WRITER)
    until(world, lambda: bool(_under_way(world)))
    write = _under_way(world)[0]
    write.target.page = own
    world.cluster.landing.land(write, decode)
    write.stops_at = 1
    until(world, lambda: VICTIM.id in world.answers)
    world.add(NEXT)
    until(world, lambda: any(h.num_tokens == 8 and h.phase is DecodePhase.RUNNING for h in _handoffs(world)))
    write.stops_at = None
    for _ in range(3):
        world.cluster.landing.land(write, decode)
    world.run()
    return world


def _under_way(world: World) -> list[PageWrite]:
    return [write for write in world.around.writes if not write.ended]


def _handoffs(world: World) -> list[DecodeHandoff]:
    return list(world.cluster.decode.loop.node.handoffs.values())
