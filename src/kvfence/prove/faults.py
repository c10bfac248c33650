"""What goes wrong, by name: the edges that each fault of ``bounds.FAULTS`` adds to a world."""

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from kvfence.protocol.events import ClientGone, DeadlinePassed, PeerSilent
from kvfence.protocol.messages import EndReason, Envelope, Sent
from kvfence.protocol.transitions import DecodePhase, Fence
from kvfence.prove import actions, lives
from kvfence.prove.effects import Draft
from kvfence.prove.locality import reads
from kvfence.prove.model import Edge, Model
from kvfence.prove.processes import rows_of
from kvfence.prove.world import DECODE, GATEWAY, PREFILL, World

WENT_WELL = (EndReason.LENGTH, EndReason.STOP)


def faults(model: Model, world: World, name: str, marked: int) -> Iterator[Edge]:
    """Give the ways in which this fault can happen now. ``marked``: the surroundings in which it has."""
    kind = f"fault:{name}"
    for edge in _FAULTS[name](model, world._replace(around=marked)):
        yield Edge(kind, edge.about, edge.world, edge.broken)


def _loss(model: Model, world: World) -> Iterator[Edge]:
    for message in dict.fromkeys(model.tables.networks[world.network].messages):
        yield Edge("", message, world._replace(network=model.without(world.network, message)))


def _duplicate(model: Model, world: World) -> Iterator[Edge]:
    for message in dict.fromkeys(model.tables.networks[world.network].messages):
        yield model.deliver(world, message, keep=True)
    yield from actions.token(model, world, keep=True)


def _confuse(model: Model, world: World) -> Iterator[Edge]:
    messages = model.tables.steps.messages
    handoffs = model.tables.decode(world.decode).node.handoffs.values()
    others = [h.attempt for h in handoffs if h.phase is DecodePhase.GRANTED]
    for number in dict.fromkeys(model.tables.networks[world.network].messages):
        envelope: Envelope = messages[number]
        if isinstance(envelope.message, Sent):
            for attempt in others:
                if attempt != envelope.message.attempt:
                    taken = replace(envelope, message=replace(envelope.message, attempt=attempt))
                    copy = messages.id_of(taken)
                    added = world._replace(network=model.adding(world.network, (copy,)))
                    yield model.deliver(added, copy)._replace(about=copy)


@reads("writes", "around")
def _corrupt(model: Model, world: World) -> Iterator[Edge]:
    for write in dict.fromkeys(model.tables.writes[world.writes]):
        if not write.ended and not write.parts & 2:
            draft = Draft(model.tables, world)
            draft.change(write, write._replace(corrupt=True))
            yield Edge("", write, *draft.done())


@reads("writes", "prefill_cells", "decode_cells", "decode", "around")
def _misdirect(model: Model, world: World) -> Iterator[Edge]:
    node = model.tables.decode(world.decode).node
    running = (h for h in node.handoffs.values() if h.phase is DecodePhase.RUNNING)
    return _astray(model, world, sorted({row.page for handoff in running for row in rows_of(node, handoff)}))


@reads("writes", "prefill_cells", "decode_cells", "decode", "around")
def _misdirect_early(model: Model, world: World) -> Iterator[Edge]:
    return _astray(model, world, range(model.bounds.capacity.decode_pages))


def _astray(model: Model, world: World, pages: Iterable[int]) -> Iterator[Edge]:
    for write in dict.fromkeys(model.tables.writes[world.writes]):
        if write.parts or write.ended:
            continue
        for page in pages:
            if page != write.page:
                for part in write.next_parts(model.bounds.in_order):
                    draft = Draft(model.tables, world)
                    astray = write._replace(page=page, misdirected=True)
                    draft.change(write, astray)
                    draft.land(astray, part)
                    yield Edge("", (write, page), *draft.done())


@reads("prefill", "writes", "prefill_cells", "clients", "around")
def _stall(model: Model, world: World) -> Iterator[Edge]:
    if model.bounds.fence is Fence.AT_RECEIPT:
        return
    writes = [write for write in model.tables.writes[world.writes] if write.live]
    for counter in dict.fromkeys(write.attempt for write in writes):
        if not all(write.ended for write in writes if write.attempt == counter):
            yield model.end_batch(world, counter, given_up=True, kind="")


@reads("prefill", "writes", "prefill_cells", "clients", "around")
def _hasty(model: Model, world: World) -> Iterator[Edge]:
    writes = [write for write in model.tables.writes[world.writes] if write.live]
    for counter in dict.fromkeys(write.attempt for write in writes):
        if not all(write.ended for write in writes if write.attempt == counter):
            yield model.end_batch(world, counter, kind="")


@reads("gateway", "clients", "around")
def _cancel(model: Model, world: World) -> Iterator[Edge]:
    for request in model.tables.gateway(world.gateway).current:
        yield model.feed(world, GATEWAY, ClientGone(request), "", int(request))


def _deadline(model: Model, world: World) -> Iterator[Edge]:
    for over in (_gateway_deadline, _prefill_deadline, _decode_deadline):
        yield from over(model, world)


@reads("gateway", "clients", "around")
def _gateway_deadline(model: Model, world: World) -> Iterator[Edge]:
    return _time_over(model, world, GATEWAY)


@reads("prefill", "prefill_cells", "writes", "clients", "around")
def _prefill_deadline(model: Model, world: World) -> Iterator[Edge]:
    return _time_over(model, world, PREFILL)


@reads("decode", "decode_cells", "clients", "around")
def _decode_deadline(model: Model, world: World) -> Iterator[Edge]:
    return _time_over(model, world, DECODE)


def _time_over(model: Model, world: World, role: int) -> Iterator[Edge]:
    for attempt in model.tables.steps.processes[world[role]].node.handoffs:
        edge = model.feed(world, role, DeadlinePassed(attempt), "", (role, attempt.counter))
        if edge.world != world or edge.broken:
            yield edge


@reads("gateway", "clients", "around")
def _retry(model: Model, world: World) -> Iterator[Edge]:
    clients = model.tables.clients[world.clients]
    for request, ends in enumerate(clients.ends if actions.may_ask(model, clients) else ()):
        if ends and ends[-1] not in WENT_WELL and clients.submitted[request] == 1:
            yield actions.ask(model, world, request, "")


@reads("gateway", "clients", "around")
def _silence(model: Model, world: World) -> Iterator[Edge]:
    for role in (PREFILL, DECODE):
        life = model.tables.around[world.around].lives[role]
        edge = model.feed(world, GATEWAY, PeerSilent(life), "", role)
        if edge.world != world:
            yield edge


def _restart_prefill(model: Model, world: World) -> Iterator[Edge]:
    draft = Draft(model.tables, world)
    lives.kill_prefill(model, draft, reaped=False)
    yield Edge("", None, *draft.done())


def _restart_decode(model: Model, world: World) -> Iterator[Edge]:
    draft = Draft(model.tables, world)
    lives.kill_decode(model, draft)
    yield Edge("", None, *draft.done())


_FAULTS: dict[str, Callable[[Model, World], Iterable[Edge]]] = {
    "loss": _loss,
    "duplicate": _duplicate,
    "confuse": _confuse,
    "corrupt": _corrupt,
    "misdirect": _misdirect,
    "misdirect-early": _misdirect_early,
    "hasty": _hasty,
    "stall": _stall,
    "cancel": _cancel,
    "deadline": _deadline,
    "retry": _retry,
    "silence": _silence,
    "restart-prefill": _restart_prefill,
    "restart-decode": _restart_decode,
}
