"""Walks a node through one trace: every event is stepped, and must lead to the commands and decisions that stand there.

Properties are asked of what each step touched (``protocol/touched.py``) and, once in a window of steps, of everything;
where that shows more, the window is walked again with everything asked at every step, so that the first is found.
Not for: reading files or wording verdicts (``replay.py``).
"""

from typing import cast

from msgspec import Struct

from kvfence.core.errors import KvfenceError
from kvfence.core.ids import AttemptId
from kvfence.core.invariant import InvariantBroken
from kvfence.core.pages import PageState
from kvfence.driver.ledger import ListLedger
from kvfence.protocol.commands import Move
from kvfence.protocol.events import Event
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import ASKED, Decision, Place
from kvfence.protocol.properties import OF_NODES, Taken, broken_by, held_lots
from kvfence.protocol.relevance import kinds_of, relevant_to
from kvfence.protocol.step import Node, Step, step
from kvfence.protocol.touched import broken_in_part, changed, named
from kvfence.prove.allowed import allowed_instead
from kvfence.prove.crossing import Crossing
from kvfence.trace.lines import line_of
from kvfence.trace.record import TraceHeader, TraceStep, begun

WINDOW_MIN, WINDOW_MAX = 1024, 8192
"""Steps between two questions to everything, and so the most that are kept: the more pages, the fewer questions."""

PAGES_PER_STEP = 8

LEDGER = "ledger-agrees"


class Departure(Struct, frozen=True):
    """The first step that the protocol does not allow: what stands there, and what would have been allowed."""

    step: int
    event: str
    why: str
    found: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


class Follower:
    """One trace's node on its way.

    Holds:
        ``broken``: by property, the first step that broke it.
        ``asks``: every guard that may be asked.
        ``untold``: properties of which nothing can be said; none, for a node sees all of its steps.
    """

    def __init__(self, header: TraceHeader, number: int, crossing: Crossing) -> None:
        self.rules, self.node = begun(header)
        self.role = header.role
        self.asks = frozenset(each for each in ASKED if each.endswith(f"@{header.role}"))
        self.untold: tuple[str, ...] = ()
        self.num_steps = 0
        self.at_ns = -1
        self.broken: dict[str, int] = {}
        self._answers: dict[tuple[str, Place, bool, bool, bool], int] = {}
        self._reached: set[str] = set()
        self._number = number
        self._crossing = crossing
        self._ledger = _ledger_of(self.node)
        num_pages = 0 if self._ledger is None else self._ledger.num_pages
        self._window_steps = min(max(WINDOW_MIN, num_pages // PAGES_PER_STEP), WINDOW_MAX)
        self._window: list[TraceStep] = []
        self._anchor = self.node
        self._named: set[AttemptId] = set()

    def take(self, line: TraceStep) -> Departure | None:
        """Take one step; give why it is not allowed, after which the node stands where it stood."""
        before, event = self.node, cast(Event, line.event)  # ``step`` refuses what is none
        try:
            result = step(self.rules, before, event)
        except (Exception, InvariantBroken) as error:  # noqa: BLE001  an edited event may break anything; it is not ours
            return self._illegal(line, error)
        if result.commands != line.commands or result.decisions != line.decisions:
            return _other_answer(line, result)
        self.num_steps, self.at_ns, self.node = self.num_steps + 1, line.at_ns, result.node
        self._crossing.note(self._number, line.n, before, event, line.commands)
        self._judge(Taken(before, event, result), line)
        return None

    def _illegal(self, line: TraceStep, error: BaseException) -> Departure:
        known = isinstance(error, KvfenceError | InvariantBroken)
        why = f"this node cannot take it: {error if known else type(error).__name__}"
        allowed = allowed_instead(self.rules, self.node, cast(Event, line.event))
        return Departure(line.n, line_of(line.event), why, (line_of(line.event),), allowed)

    @property
    def decisions(self) -> dict[tuple[str, str, str], int]:
        """Say how often each guard gave each answer."""
        counts: dict[tuple[str, str, str], int] = {}
        for (guard, place, holds, enforced, observed), count in self._answers.items():
            key = (guard, place, Decision(guard, place, None, holds, enforced, observed).answer)
            counts[key] = counts.get(key, 0) + count
        return counts

    @property
    def reached(self) -> tuple[str, ...]:
        """Name each *sometimes* that happened."""
        return tuple(sorted(self._reached))

    # ---- properties

    def _judge(self, taken: Taken, line: TraceStep) -> None:
        counts = self._answers
        for decision in taken.step.decisions:
            key = (decision.guard, decision.place, decision.holds, decision.enforced, decision.observed)
            counts[key] = counts.get(key, 0) + 1
        if taken.step.commands or taken.step.node is not taken.before:
            self._ask(taken, line.n)
        self._window.append(line)
        if len(self._window) >= self._window_steps:
            self.ask_everything()

    def _ask(self, taken: Taken, number: int) -> None:
        before, after = taken.before, taken.step.node
        kinds, attempts = kinds_of(taken), named(before, taken.event, taken.step)
        for name in broken_in_part(taken, kinds, attempts):
            self.broken.setdefault(name, number)
        if Move in kinds and not self._move_pages(taken.step):
            self.broken.setdefault(LEDGER, number)
        for each in relevant_to(type(after), kinds).sometimes:
            if each.name not in self._reached and each.holds(taken):
                self._reached.add(each.name)
        self._named |= attempts
        if after.lives is not before.lives:  # then everything was asked of everything
            self._named |= changed(before.handoffs, after.handoffs)

    def _move_pages(self, result: Step) -> bool:
        """Move pages as the commands say; False where the ledger refuses, or counts other free pages than the node."""
        moves = [command for command in result.commands if isinstance(command, Move)]
        if self._ledger is None or isinstance(result.node, GatewayNode) or not moves:
            return True
        try:
            for move in moves:
                self._ledger.apply(move)
        except KvfenceError:
            return False
        return self._ledger.count(PageState.FREE) == result.node.pool.num_free

    def ask_everything(self) -> None:
        """Ask every property of the whole node, and whether the window changed what no step of it named."""
        if not self._window:
            return
        more = [p.name for p in OF_NODES if not p.holds(self.node) and p.name not in self.broken]
        if more or not changed(self._anchor.handoffs, self.node.handoffs) <= self._named:
            self._walk_again()
        if self._ledger is not None and self._ledger.disagreements(held_lots(self.node)):
            self.broken.setdefault(LEDGER, self._window[-1].n)
        self._window, self._anchor, self._named = [], self.node, set()

    def _walk_again(self) -> None:
        node = self._anchor
        for line in self._window:
            event = cast(Event, line.event)
            result = step(self.rules, node, event)
            for name in broken_by(Taken(node, event, result)):
                self.broken[name] = min(line.n, self.broken.get(name, line.n))
            node = result.node


def _ledger_of(node: Node) -> ListLedger | None:
    if isinstance(node, GatewayNode):
        return None
    return ListLedger(node.pool.num_pages, PageState.QUARANTINED if node.pool.quarantined else PageState.FREE)


def _other_answer(line: TraceStep, result: Step) -> Departure:
    """Say what the event must lead to where a trace says something else."""
    found: tuple[object, ...] = (*line.commands, *line.decisions)
    due: tuple[object, ...] = (*result.commands, *result.decisions)
    differ = (n for n, (a, b) in enumerate(zip(found, due, strict=False)) if a != b)
    first = next(differ, min(len(found), len(due)))
    why = f"it leads to other commands or decisions, from the {first + 1}th on"
    there, allowed = (tuple(map(line_of, each[first:])) for each in (found, due))
    return Departure(line.n, line_of(line.event), why, there, allowed)
