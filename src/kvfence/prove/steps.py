"""``step``, each (node, event) once: what it leads to, and which properties it breaks, are remembered.

The very function that the server runs; nothing here decides. Nodes recur by the thousand in a search, so that nearly
every step is a look-up.
"""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from kvfence.core.errors import KvfenceError
from kvfence.core.ids import BatchId, PassId
from kvfence.driver.ledger import ListLedger
from kvfence.driver.loop import Rewrite
from kvfence.protocol import properties
from kvfence.protocol.commands import (
    Adopt,
    Command,
    Emit,
    Finish,
    Grew,
    Move,
    Post,
    Resubmit,
    RunPass,
    Send,
    StartPrefill,
)
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import Event, Received
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import Decision, Rules
from kvfence.protocol.handoff import DecodeHandoff, PrefillHandoff
from kvfence.protocol.lots import Lot
from kvfence.protocol.messages import Envelope
from kvfence.protocol.node_properties import held_lots
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.properties import Taken
from kvfence.protocol.step import Node, step
from kvfence.protocol.transitions import DecodePhase, PrefillPhase
from kvfence.prove.processes import Process, Table, with_node

REFUSED = "event-refused"
"""Named as broken where a node or its page table refuses an event as impossible."""

LEDGER = "ledger-agrees"

OUTSIDE = (StartPrefill, Post, Adopt, Grew, RunPass, Emit, Resubmit, Finish)

Observe = Callable[[Taken], None]
"""Called once for every step that was not taken before."""


class Outcome(NamedTuple):
    """What one event led to. ``sends``: numbers of messages; ``commands``: those that do something outside the node."""

    process: int
    sends: tuple[int, ...]
    commands: tuple[Command, ...]
    broken: tuple[str, ...]
    decisions: tuple[Decision, ...]


class Steps:
    """Takes steps and remembers them.

    Holds: ``processes`` and ``messages``, numbered; ``reached``: the *sometimes* properties that some step reached.
    ``log``: while ``logging``, every outcome that was asked for.
    """

    def __init__(
        self, rules: Rules, rewrites: tuple[Rewrite, ...] = (), *, exact: bool = False, settled: bool = False
    ) -> None:
        self.rules = rules
        self.processes: Table[Process] = Table()
        self.messages: Table[Envelope] = Table()
        self.reached: set[str] = set()
        self.observers: list[Observe] = []
        self.logging = False
        self.log: list[Outcome] = []
        self._rewrites = rewrites
        self._exact = exact
        self._settled = settled
        self._taken: dict[tuple[int, Event | int], Outcome] = {}

    def __len__(self) -> int:
        return len(self._taken)

    def deliver(self, process: int, message: int) -> Outcome:
        """Hand a message over."""
        outcome = self._taken.get((process, message))
        if outcome is None:
            event: Event = Received(self.messages[message])
            outcome = self._taken[process, message] = self._take(process, event)
        if self.logging:
            self.log.append(outcome)
        return outcome

    def feed(self, process: int, event: Event) -> Outcome:
        """Step a process with an event."""
        outcome = self._taken.get((process, event))
        if outcome is None:
            outcome = self._taken[process, event] = self._take(process, event)
        if self.logging:
            self.log.append(outcome)
        return outcome

    def _take(self, number: int, event: Event) -> Outcome:
        process = self.processes[number]
        node = process.node
        if isinstance(node, PrefillNode):
            for rewrite in self._rewrites:
                event = rewrite(event)
        try:
            result = step(self.rules, node, event)
            moved = _moved(node, result.node, [c for c in result.commands if isinstance(c, Move)])
        except KvfenceError:
            return Outcome(number, (), (), (REFUSED,), ())
        taken = Taken(node, event, result)
        self.reached.update(properties.reached_by(taken))
        for observe in self.observers:
            observe(taken)
        broken = (*properties.broken_by(taken), *moved)
        node_after = result.node if self._exact else tidy(result.node)
        after = with_node(process, with_floors_sorted(node_after) if self._settled else node_after)
        life = node.lives.incarnation
        sends = [c for c in result.commands if isinstance(c, Send)]
        return Outcome(
            self.processes.id_of(after),
            tuple(self.messages.id_of(Envelope(life, c.to, c.message)) for c in sends),
            tuple(c for c in result.commands if isinstance(c, OUTSIDE)),
            broken,
            result.decisions,
        )


def _moved(before: Node, after: Node, moves: list[Move]) -> tuple[str, ...]:
    """Move the pages in a table that agrees with the node before; name the property if it does not afterwards."""
    if isinstance(before, GatewayNode) or isinstance(after, GatewayNode):
        return ()
    ledger = ListLedger.showing(before.pool.num_pages, held_lots(before), before.pool.next_serial - 1)
    for move in moves:
        ledger.apply(move)
    return (LEDGER,) if ledger.disagreements(held_lots(after)) else ()


# ---- what nobody asks for any more --------------------------------------------------------------------------------


def tidy(node: Node) -> Node:
    """Forget what no later step reads: numbers of passes and batches that are over, details of closed hand-offs.

    Orders of running sequences become 1, 2, ...: only which is older matters.
    """
    if isinstance(node, DecodeNode):
        running = sorted(h.order for h in node.handoffs.values() if h.phase is DecodePhase.RUNNING)
        ranks = {order: rank for rank, order in enumerate(running, 1)}
        decode = {attempt: _tidy_decode(h, ranks) for attempt, h in node.handoffs.items()}
        last_pass = node.last_pass if node.passes else PassId(0)
        return replace(node, handoffs=decode, last_pass=last_pass, last_order=len(running))
    if isinstance(node, PrefillNode):
        prefill = {attempt: _tidy_prefill(h) for attempt, h in node.handoffs.items()}
        last_pass = node.last_pass if node.passes else PassId(0)
        one_each = all(len(h.batches) <= 1 for h in prefill.values())
        last_batch = BatchId(0) if one_each else node.last_batch
        return replace(node, handoffs=prefill, last_pass=last_pass, last_batch=last_batch)
    return node


def with_floors_sorted(node: Node) -> Node:
    """Let floors stand in one order, whichever was heard first."""
    lives = replace(node.lives, floors=dict(sorted(node.lives.floors.items())))
    return replace(node, lives=lives)


def _tidy_decode(handoff: DecodeHandoff, ranks: dict[int, int]) -> DecodeHandoff:
    if handoff.phase is not DecodePhase.CLOSED:
        return replace(handoff, order=ranks.get(handoff.order, 0))
    remote = None if handoff.remote is None else Lot(0, ())
    return replace(handoff, order=0, remote=remote, manifest=None, bad=frozenset(), num_tokens=0, max_tokens=0)


def _tidy_prefill(handoff: PrefillHandoff) -> PrefillHandoff:
    if handoff.phase is PrefillPhase.CLOSED and handoff.lot is None and not (handoff.batches or handoff.passes):
        kept = PrefillHandoff(handoff.attempt, handoff.decode, 0, PrefillPhase.CLOSED)
        return replace(kept, unknown=handoff.unknown, answer=handoff.answer)
    if len(handoff.batches) == 1:
        return replace(handoff, batches=((BatchId(1), handoff.batches[0][1]),))
    return handoff
