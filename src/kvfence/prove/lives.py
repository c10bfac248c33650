"""Deaths, successors and fences, as a supervisor sees to them."""

from collections.abc import Iterator

from kvfence.core.ids import Incarnation, SessionId
from kvfence.core.pages import PageState
from kvfence.protocol.events import Event, PeerGone, PeerUp, SessionRebuilt
from kvfence.protocol.transitions import Fence
from kvfence.prove.effects import Draft
from kvfence.prove.locality import reads
from kvfence.prove.model import Edge, Model
from kvfence.prove.pages import EMPTY
from kvfence.prove.processes import page_states
from kvfence.prove.world import DECODE, GATEWAY, PREFILL, ROLES, World


def states_of(model: Model, world: World) -> dict[int, tuple[PageState, int]]:
    """Give the state and serial of every page of decode that is not free."""
    return page_states(model.tables.decode(world.decode).node)


@reads("gateway", "clients", "around")
def gateway_notice(model: Model, world: World) -> Iterator[Edge]:
    """The gateway hears the next thing that the supervisor has to tell it."""
    return _notice(model, world, GATEWAY)


@reads("prefill", "prefill_cells", "writes", "clients", "around")
def prefill_notice(model: Model, world: World) -> Iterator[Edge]:
    """Prefill hears the next thing that the supervisor has to tell it."""
    return _notice(model, world, PREFILL)


@reads("decode", "decode_cells", "clients", "around")
def decode_notice(model: Model, world: World) -> Iterator[Edge]:
    """Decode hears the next thing that the supervisor has to tell it."""
    return _notice(model, world, DECODE)


def _notice(model: Model, world: World, role: int) -> Iterator[Edge]:
    notices = model.tables.around[world.around].notices
    if notices[role]:
        draft = Draft(model.tables, world)
        rest = tuple(each[1:] if other == role else each for other, each in enumerate(notices))
        draft.around = draft.around._replace(notices=rest)  # type: ignore[arg-type]
        draft.take(role, model.tables.steps.feed(world[role], notices[role][0]))
        yield Edge("notice", (role, notices[role][0]), *draft.done())


@reads("writes", "around")
def reap(model: Model, world: World) -> Iterator[Edge]:
    """The oldest killed writer's process has ended, and where it wrote itself, its writes with it."""
    around = model.tables.around[world.around]
    if around.dying:
        draft = Draft(model.tables, world)
        old = around.dying[0]
        draft.around = around._replace(dying=around.dying[1:])
        _end_writes(model, draft, old)
        tell(draft, (GATEWAY, DECODE), PeerGone(old, reaped=True))
        yield Edge("reap", old, *draft.done())


def _end_writes(model: Model, draft: Draft, old: Incarnation) -> None:
    if model.bounds.fence is not Fence.NEW_SESSION:
        draft.writes = [write for write in draft.writes if write.writer != old]


def tell(draft: Draft, roles: tuple[int, ...], *events: Event) -> None:
    """Let the supervisor tell these roles something, each in its own time."""
    notices = tuple((*n, *events) if role in roles else n for role, n in enumerate(draft.around.notices))
    draft.around = draft.around._replace(notices=notices)  # type: ignore[arg-type]


def kill_prefill(model: Model, draft: Draft, *, reaped: bool) -> None:
    """Prefill dies and a successor is born; what it posted reads the pages as they were."""
    old, new = _born(draft, PREFILL)
    writes = []
    for write in draft.writes:
        if write.writer == old:
            write = write._replace(live=False, source=draft.cell_of(write))
        if not write.ended:
            writes.append(write)
    draft.writes = writes
    processes = model.tables.steps.processes
    draft.processes[PREFILL] = processes.id_of(model.new_prefill(draft.around.lives))
    draft.prefill_cells = [EMPTY] * len(draft.prefill_cells)
    if reaped:
        _end_writes(model, draft, old)
    else:
        draft.around = draft.around._replace(dying=(*draft.around.dying, old))
    tell(draft, (GATEWAY,), PeerGone(old, reaped), PeerUp(new, writes=False))
    tell(draft, (DECODE,), PeerGone(old, reaped), PeerUp(new, writes=True))


def kill_decode(model: Model, draft: Draft) -> None:
    """Decode dies; its successor finds the memory as it is, and writes for its predecessor still on their way."""
    old, new = _born(draft, DECODE)
    processes = model.tables.steps.processes
    draft.processes[DECODE] = processes.id_of(model.new_decode(draft.around.lives))
    draft.network = draft.network._replace(tokens=())
    draft.around = draft.around._replace(fenced=False)
    tell(draft, (GATEWAY, PREFILL), PeerGone(old, reaped=True), PeerUp(new, writes=False))


def _born(draft: Draft, role: int) -> tuple[Incarnation, Incarnation]:
    around = draft.around
    born = tuple(number + (each == role) for each, number in enumerate(around.born))
    old, new = around.lives[role], Incarnation(f"{ROLES[role]}-{born[role]}")
    lives = tuple(new if each == role else life for each, life in enumerate(around.lives))
    notices = tuple(() if each == role else waiting for each, waiting in enumerate(around.notices))
    draft.around = around._replace(lives=lives, born=born, notices=notices)  # type: ignore[arg-type]
    return old, new


def rebuild(model: Model, draft: Draft) -> None:
    """Destroy and rebuild decode's receiving engine: nothing that was posted to the old one lands any more."""
    session = draft.around.session + 1
    draft.around = draft.around._replace(session=session)
    event = SessionRebuilt(SessionId(str(session)))
    draft.take(DECODE, model.tables.steps.feed(draft.processes[DECODE], event))
