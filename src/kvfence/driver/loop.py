"""Feeds a node and carries out its commands: the one driver of live workers, simulation and tests.

Clock-free. Page moves go to the ledger, all else to ``execute``; events that follow are fed in order.
Read ``protocol/step.py`` first.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from kvfence.core.errors import LocalProtocolError
from kvfence.driver.ledger import Ledger
from kvfence.protocol.commands import Command, Move
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import Event
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import Decision, Rules
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.step import Node, Step

N = TypeVar("N", DecodeNode, PrefillNode, GatewayNode)

Stepper = Callable[[Rules, Node, Event], Step]
"""``step`` itself, or a recorder's."""

Execute = Callable[[Command], Iterable[Event] | None]
"""Carries out one command and gives the events it led to at once."""

Rewrite = Callable[[Event], Event]
"""Changes an event before the node sees it: how faults are injected (``mutants.py``). Production has none."""


class NodeLoop(Generic[N]):
    """One node with its ledger.

    Holds:
        ``node``: the current state; changed only here.
        ``decisions``: how often each guard gave each answer at this node.
    """

    def __init__(self, rules: Rules, node: N, ledger: Ledger | None, execute: Execute, stepper: Stepper) -> None:
        self.rules = rules
        self.node: N = node
        self.ledger = ledger
        self.decisions: dict[tuple[str, str, str], int] = {}
        self.rewrites: list[Rewrite] = []
        self._execute = execute
        self._stepper = stepper
        self._queue: deque[Event] = deque()
        self._feeding = False

    def feed(self, event: Event) -> None:
        """Step the node with an event and everything that follows from it.

        Raises:
            LocalProtocolError: the event is illegal for this node now; its state is unchanged.
        """
        self._queue.append(event)
        if self._feeding:
            return  # a command's handler fed it: its turn comes in order
        self._feeding = True
        try:
            while self._queue:
                self._step(self._queue.popleft())
        finally:
            self._feeding = False

    def _step(self, event: Event) -> None:
        for rewrite in self.rewrites:
            event = rewrite(event)
        result = self._stepper(self.rules, self.node, event)
        if type(result.node) is not type(self.node):
            raise LocalProtocolError("a step changed the kind of its node")
        self.node = result.node
        for decision in result.decisions:
            self._count(decision)
        for command in result.commands:
            if isinstance(command, Move):
                self._move(command)
            self._queue.extend(self._execute(command) or ())

    def _move(self, move: Move) -> None:
        if self.ledger is None:
            raise LocalProtocolError("a node without pages moved some")
        self.ledger.apply(move)

    def _count(self, decision: Decision) -> None:
        key = (decision.guard, decision.place, decision.answer)
        self.decisions[key] = self.decisions.get(key, 0) + 1
