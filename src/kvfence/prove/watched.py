"""Walks a plug-in's trace: every fact must be one that can be now, and lead to the decisions that stand there.

What the plug-in does not see, by its header, is told as such and never taken for conforming. Not for: our own workers'
traces (``follow.py``), which hold every step.
"""

from typing import cast

from kvfence.core.errors import LocalProtocolError, TraceError
from kvfence.core.ids import Incarnation
from kvfence.driver.watch import WATCHED, Watch
from kvfence.protocol.guards import Place, Rules
from kvfence.protocol.watched import SIGHTS, Compared, Heard, Promised, Said, Watched
from kvfence.prove.crossing import Crossing
from kvfence.prove.follow import Departure
from kvfence.trace.lines import line_of
from kvfence.trace.record import TraceHeader, TraceStep


class Watching:
    """One plug-in's trace on its way.

    Holds:
        ``broken``: by property, the first step that broke it.
        ``decisions``: how often each guard gave each answer; ``asks``: every guard that could have.
        ``untold``: properties that it does not see enough for.
    """

    def __init__(self, header: TraceHeader, number: int, crossing: Crossing) -> None:
        foreign = {*header.absent, *header.observed} - WATCHED
        if foreign:
            raise TraceError(f"its rules name guards that no plug-in asks: {', '.join(sorted(foreign))}")
        if header.role not in ("prefill", "decode") or not set(header.unseen) <= set(SIGHTS):
            raise TraceError(f"a plug-in of the role {header.role} that does not see {', '.join(header.unseen)}")
        self.role = header.role
        self.num_steps = 0
        self.at_ns = -1
        self.broken: dict[str, int] = {}
        self.decisions: dict[tuple[str, str, str], int] = {}
        self.reached: tuple[str, ...] = ()
        self.asks = frozenset(each for each in WATCHED if each.endswith(f"@{header.role}"))
        self._life = Incarnation(header.incarnation)
        rules, role = Rules(frozenset(header.absent), frozenset(header.observed)), cast(Place, header.role)
        self._watch = Watch(rules, role, self._life, header.node.layout, frozenset(header.unseen))
        self.untold = self._watch.untold
        self._number, self._crossing = number, crossing

    def take(self, line: TraceStep) -> Departure | None:
        """Take one fact; give why it cannot be, after which everything stands as it stood."""
        event = line.event
        try:
            seen = self._watch.see(cast(Watched, event))
        except LocalProtocolError as error:
            return Departure(line.n, line_of(event), f"this plug-in cannot have seen it: {error}", (line_of(event),))
        if seen.decisions != line.decisions or line.commands:
            found, due = (tuple(map(line_of, each)) for each in ((*line.commands, *line.decisions), seen.decisions))
            return Departure(line.n, line_of(event), "it leads to other decisions", found, due)
        self.num_steps, self.at_ns = self.num_steps + 1, line.at_ns
        for decision in seen.decisions:
            key = (decision.guard, decision.place, decision.answer)
            self.decisions[key] = self.decisions.get(key, 0) + 1
        for name in seen.broken:
            self.broken.setdefault(name, line.n)
        self._cross(line)
        return None

    def ask_everything(self) -> None:
        """Nothing is left to ask: each fact was judged as it came."""

    def _cross(self, line: TraceStep) -> None:
        """What one plug-in of a pair promised is what the other heard."""
        match line.event:
            case Said(word=Promised() as word):
                self._crossing.sent(self._life, word)
            case Heard(sender=sender, word=Promised() as word):
                self._crossing.received(self._number, line.n, sender, word)
            case Compared(attempt=attempt, promise=Promised() as word) if attempt.gateway != self._life:
                self._crossing.received(self._number, line.n, attempt.gateway, word)
