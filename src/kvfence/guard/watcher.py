"""Writes down what a plug-in saw and decided: the project's trace, for ``kvfence prove replay``.

Any thread may call it. It never raises into the engine: a fact that cannot be is written as it came, and replay says
so; a file that cannot be written ends there. Each line is flushed, because engines are killed. Without a folder it
only decides. Read ``protocol/watched.py`` for what there is to see.
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from kvfence.core.errors import LocalProtocolError
from kvfence.core.ids import Incarnation
from kvfence.driver.watch import Seen, Watch, watching
from kvfence.protocol.admission import Capacity
from kvfence.protocol.guards import Decision, Place
from kvfence.protocol.watched import Watched
from kvfence.trace.record import SCHEMA, NodeStart, TraceHeader, TraceStep
from kvfence.trace.recorder import TraceFile

BYTES_MAX = 64 << 20
"""Of one file; its predecessor is kept, so twice this for each engine process."""


class Engine(Struct, frozen=True):
    """The process that a plug-in is in.

    ``name``: the engine and its release. ``unseen``: of ``watched.SIGHTS``, what this plug-in does not see in it.
    """

    name: str
    role: Place
    life: Incarnation
    layout: str
    capacity: Capacity
    unseen: tuple[str, ...] = ()


class Watcher:
    """One engine process's trace."""

    def __init__(self, engine: Engine, *, enforced: bool, folder: Path | None, bytes_max: int = BYTES_MAX) -> None:
        rules = watching(enforced=enforced)
        self._watch = Watch(rules, engine.role, engine.life, engine.layout, frozenset(engine.unseen))
        self._lock = threading.Lock()
        self._n = 0
        self._file: TraceFile | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            observed = tuple(sorted(rules.observed))
            start = NodeStart(engine.capacity, layout=engine.layout)
            self._file = TraceFile(folder / f"{engine.role}-{engine.life[:8]}.ndjson", bytes_max)
            self._file.begin(
                TraceHeader(SCHEMA, engine.role, engine.life, (), start, observed, engine.name, engine.unseen)
            )
            self._file.flush()

    def see(self, event: Watched, decided: Sequence[Decision] | None = None) -> Seen:
        """Take one fact, write it down, and give what follows from it.

        ``decided``: what the plug-in decided by itself; None: what follows is what it does.
        """
        with self._lock:
            try:
                seen = self._watch.see(event)
            except LocalProtocolError:
                seen = Seen()
            if self._file is not None:
                self._n += 1
                decisions = seen.decisions if decided is None else tuple(decided)
                self._file.write(TraceStep(self._n, time.monotonic_ns(), event, (), decisions))
                self._file.flush()
            return seen

    def close(self) -> None:
        """Say that this was all."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.end(self._n)
                file.close()
