"""Traces of a simulated run, one for each life, as live workers write them. Units: at_ns counts steps."""

import itertools
from pathlib import Path

from kvfence.core.ids import Incarnation
from kvfence.protocol.events import Event
from kvfence.protocol.guards import Rules
from kvfence.protocol.step import Node, Step
from kvfence.trace.recorder import Recorder, TraceFile

BYTES_MAX = 1 << 40


class Recording:
    """A stepper that records every life into a trace of its own."""

    def __init__(self, folder: Path, bytes_max: int = BYTES_MAX) -> None:
        self.folder = folder
        self._recorders: dict[Incarnation, Recorder] = {}
        self._bytes_max = bytes_max
        self._clock = itertools.count()

    def __call__(self, rules: Rules, node: Node, event: Event) -> Step:
        """Step and record."""
        life = node.lives.incarnation
        if life not in self._recorders:
            role = type(node).__name__.removesuffix("Node").lower()
            sink = TraceFile(self.folder / f"{role}-{int(life, 16)}.ndjson", self._bytes_max)
            self._recorders[life] = Recorder(sink, lambda: next(self._clock))
            self._recorders[life].begin(rules, role, node)
        return self._recorders[life].step(rules, node, event)

    def close(self) -> list[Path]:
        """End every trace; give them all."""
        for recorder in self._recorders.values():
            recorder.close()
        return sorted(self.folder.glob("*.ndjson"))
