"""One simulated process: a node in its loop, its timers, and the moves it can make next.

Not for: what a role does with commands (``prefill.py``, ``decode.py``, ``gateway.py``).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Literal, NamedTuple, TypeVar

from msgspec import Struct

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.core.pages import PageState
from kvfence.driver.ledger import ListLedger
from kvfence.driver.loop import NodeLoop, Rewrite, Stepper
from kvfence.protocol.admission import Capacity
from kvfence.protocol.commands import Command, Send, StartTimer
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import DeadlinePassed, Event, Received
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import Rules
from kvfence.protocol.messages import Envelope, Message
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.step import Node
from kvfence.protocol.transitions import Fence
from kvfence.sim.faults import NONE, Faults
from kvfence.sim.memory import Memory, PageWrite, Written
from kvfence.sim.oracle import Oracle, PageRead
from kvfence.sim.tape import Choice, Tape
from kvfence.sim.workload import SimRequest
from kvfence.wire.codec import Codec

N = TypeVar("N", DecodeNode, PrefillNode, GatewayNode)

_CODEC = Codec(Envelope)

LAYOUT = "layout"
DRIFTED = "another layout"


class Setup(Struct, frozen=True):
    """How a world is built.

    ``seed``: None runs everything as soon as it can, in order; a number draws the order and the faults.
    ``rewrites``: mistakes of the prefill engine (``driver/mutants.py``).
    ``engine_pages``: what the prefill engine takes of one prompt where that is less than its pool, unknown to others.
    ``prefix_reuse``: prompts that begin alike share pages within a tenant.
    ``checked``: check every property after every step. ``choices``: play these and draw none.
    ``real``: pages are records of bytes, sealed and compared by ``kvfence.kv``; messages cross the wire's codec.
    """

    rules: Rules
    capacity: Capacity
    fence: Fence = Fence.PEER_EXIT
    faults: Faults = NONE
    seed: int | None = None
    batch_pages_max: int = 2
    chunk_pages: int = 2
    concurrency: int = 4
    rewrites: tuple[Rewrite, ...] = ()
    engine_pages: int | None = None
    num_prefill: int = 1
    num_decode: int = 1
    prefix_reuse: bool = False
    checked: bool = True
    choices: tuple[Choice, ...] | None = None
    real: bool = False


class Action(NamedTuple):
    """Something that can happen next."""

    kind: str
    run: Callable[[], None]


class Surroundings:
    """What processes share: the setup, the seed, who asked for what, and what the oracle saw.

    Holds:
        ``asked``: the request behind every attempt, as prompts travel beside Dispatch.
        ``calm``: nothing goes wrong any more; the run comes to rest. ``happened``: how often each kind of thing did.
        ``first_reads``: what prefill computed an attempt's first token from, as it travels with Sent.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.rng = Tape(setup.seed, setup.choices) if setup.seed is not None else None
        self.happened: dict[str, int] = {}
        self.asked: dict[AttemptId, SimRequest] = {}
        self.first_reads: dict[AttemptId, tuple[PageRead, ...]] = {}
        self.calm = False
        self.oracle = Oracle(LAYOUT, setup.capacity.page_size)
        self.writes: list[PageWrite] = []
        self.stray_writes: list[str] = []
        self.stale_slots: list[str] = []
        self._names: dict[bytes, Written] = {}

    def new_memory(self, num_pages: int) -> Memory:
        """Make the pages of one pool: symbols, or records of bytes."""
        if not self.setup.real:
            return Memory(num_pages)
        from kvfence.sim.records import RecordMemory

        return RecordMemory(num_pages, self.setup.capacity.page_size, self._names)

    def through_wire(self, envelope: Envelope) -> Envelope:
        """Give a message as it is after it was encoded and read back."""
        return _CODEC.decode(_CODEC.encode(envelope)) if self.setup.real else envelope

    def note(self, kind: str) -> None:
        """Count something that happened."""
        self.happened[kind] = self.happened.get(kind, 0) + 1

    def some(self, items: list[AttemptId]) -> list[AttemptId]:
        """Give all, or with a seed a drawn part that is not empty."""
        if self.rng is None or len(items) < 2:
            return items
        return sorted(self.rng.sample(items, self.rng.randint(1, len(items))))

    def written(self, attempt: AttemptId, position: int, layout: str, *, generated: bool = False) -> Written:
        """Give the bytes an attempt's request leaves in a page."""
        request = self.asked[attempt]
        content = request.content(position, self.setup.capacity.page_size)
        kind: Literal["prompt", "generated"] = "generated" if generated else "prompt"
        return Written(request.id, request.tenant, position, kind, layout, content)


SendTo = Callable[[Incarnation, Incarnation, Message], None]


class Process(Generic[N]):
    """One life of one role."""

    role = ""

    def __init__(self, around: Surroundings, node: N, send: SendTo, stepper: Stepper) -> None:
        self.around = around
        self.incarnation = node.lives.incarnation
        self.timers: set[AttemptId] = set()
        self.pages = _ledger(node)
        self._send = send
        ledger = None if self.role == "gateway" else self.pages
        self.loop: NodeLoop[N] = NodeLoop(around.setup.rules, node, ledger, self.execute, stepper)

    def execute(self, command: Command) -> Iterable[Event] | None:
        """Carry out a command, or leave it to the role."""
        match command:
            case Send(to=to, message=message):
                self._send(self.incarnation, to, message)
            case StartTimer(attempt=attempt):
                self.timers.add(attempt)
            case _:
                self.carry_out(command)
        return None

    def receive(self, envelope: Envelope) -> None:
        """Take a message."""
        self.loop.feed(Received(envelope))

    def carry_out(self, command: Command) -> None:
        """Do what only this role does."""

    def actions(self) -> Iterator[Action]:
        """Give what this process can do next."""
        return iter(())

    def deadline(self, attempt: AttemptId) -> None:
        """An attempt's time is over here."""
        self.timers.discard(attempt)
        self.loop.feed(DeadlinePassed(attempt))

    def note_stray(self, page: int, serial: int) -> None:
        """Record a local write into a page that is not held under this serial."""
        if self.pages.serial(page) != serial or self.pages.state(page) is PageState.FREE:
            self.around.stray_writes.append(f"{self.role} pass wrote page {page} under old serial {serial}")


def _ledger(node: Node) -> ListLedger:
    if isinstance(node, GatewayNode):
        return ListLedger(0, PageState.FREE)
    start = PageState.QUARANTINED if node.pool.quarantined else PageState.FREE
    return ListLedger(node.pool.num_pages, start)
