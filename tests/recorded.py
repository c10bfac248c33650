"""Traces of simulated runs, one for each life, and what spoils them."""

from collections.abc import Callable
from pathlib import Path

from kvfence.core.errors import KvfenceError
from kvfence.driver.loop import Stepper
from kvfence.protocol.guards import Rules
from kvfence.prove.replay import Ruling, replay
from kvfence.sim.campaign import world_of
from kvfence.sim.faults import EVERYTHING, Faults
from kvfence.sim.recording import Recording
from kvfence.sim.world import World
from kvfence.trace.record import sealed_line


def record(folder: Path, build: Callable[[Stepper], World], bytes_max: int = 1 << 30) -> list[Path]:
    """Run a world to its end, or to what its nodes or ledgers refuse, and give its traces."""
    folder.mkdir(exist_ok=True)
    recording = Recording(folder, bytes_max)
    try:
        build(recording).run()
    except KvfenceError:
        pass
    return recording.close()


def record_seed(folder: Path, seed: int, rules: Rules = Rules.all(), faults: Faults = EVERYTHING) -> list[Path]:
    """Record the run of one seed."""
    drawn = world_of(seed, rules, faults)
    return record(folder, lambda stepper: World(drawn.setup, drawn.waiting, stepper))


def require_allowed(folder: Path, *, guarded: bool = True) -> None:
    """Replay what live workers recorded: the model allows all of it, and no property broke where guards were on.

    A worker that was killed leaves a trace without an end, or an empty one: as far as it goes it is allowed.
    """
    for trace in replay(sorted(folder.glob("*.ndjson"))).traces:
        assert trace.verdict is not Ruling.NOT_ALLOWED, (trace.path, trace.why, trace.departure)
        assert not (guarded and trace.violated), (trace.path, trace.violated)
        if trace.verdict is Ruling.UNKNOWN and Path(trace.path).stat().st_size:
            assert "no end after step" in trace.why or "no step" in trace.why, trace.why


def bodies(raw: bytes) -> list[bytes]:
    """Give the objects of a trace's lines, without their sums."""
    return [line[: line.rfind(b',"sum":')] + b"}" for line in raw.splitlines()]


def resealed(lines: list[bytes]) -> bytes:
    """Make the sums anew, as whoever edits with care would."""
    sealed, total = [], 0
    for body in lines:
        line, total = sealed_line(body, total)
        sealed.append(line)
    return b"".join(sealed)
