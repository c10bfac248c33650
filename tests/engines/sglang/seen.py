"""What a pair shows of itself: the guard's counts, and what replay says of its traces."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx
import traces
from conftest import TAMPER, TRACES
from msgspec import Struct
from msgspec.structs import replace
from pair import Pair

from kvfence.guard.watcher import BYTES_MAX
from kvfence.protocol.watched import Reserved, Returning
from kvfence.trace.reader import read_trace
from kvfence.trace.record import TraceHeader, TraceStep
from kvfence.trace.recorder import TraceFile

REFUSED_S = float(os.environ.get("SGLANG_REFUSED_S", "5"))
"""One second on an idle machine; others run here too."""


def limits_of(url: str) -> dict[str, Any]:
    """Give what a worker's ``/server_info`` says of how much it takes."""
    info = httpx.get(f"{url}/server_info", timeout=60, trust_env=False).json()
    return {name: info[name] for name in ("max_req_input_len", "internal_states")}


def total(url: str, name: str, **labels: str) -> float:
    """Add up a metric's samples that have these labels; 0 where there are none."""
    text = httpx.get(f"{url}/metrics", timeout=60, trust_env=False).text
    found = re.findall(rf"^{re.escape(name)}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(float(value) for given, value in found if all(each in given for each in wanted))


def decisions(pair: Pair, answer: str, **labels: str) -> int:
    """Count the guard's decisions of one kind over both roles."""
    both = (pair.prefill, pair.decode)
    return int(sum(total(url, "kvfence:guard_decisions_total", answer=answer, **labels) for url in both))


def checked(pair: Pair) -> int:
    """Give how ``kvfence guard check`` ends: 0 where both roles enforce, 1 where something is amiss."""
    command = [sys.executable, "-m", "kvfence", "guard", "check", pair.prefill, pair.decode]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode


def held(pair: Pair) -> int:
    """Give how many of decode's pages are in quarantine."""
    return int(total(pair.decode, "kvfence:guard_quarantined_pages"))


def rulings(pair: Pair) -> dict[str, str]:
    """Replay the traces that the pair has written so far; give what is said of each role's."""
    return dict(traces.rulings(pair.logs / TRACES))


def until(holds: Callable[[], bool], timeout_s: float) -> bool:
    """Ask until it holds."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.25)
    return False


class Found(Struct, frozen=True):
    """What replay says of one role's trace. ``broken``: properties; ``observed``: guards that would have refused."""

    verdict: str
    why: str
    broken: frozenset[str]
    observed: frozenset[str]


class Cut:
    """What a pair's traces tell from now on, when nothing is open there: each a trace of its own."""

    def __init__(self, pair: Pair) -> None:
        self._folder = pair.logs / TRACES
        self._from = {path: len(steps) for path, _, steps in self._read()}

    def _read(self) -> list[tuple[Path, TraceHeader, list[TraceStep]]]:
        read = [(path, *read_trace(path)) for path in sorted(self._folder.glob("*.ndjson"))]
        return [(path, header, list(steps)) for path, header, steps in read]

    def _since(self) -> list[tuple[Path, TraceHeader, list[TraceStep]]]:
        return [(path, header, steps[self._from.get(path, 0) :]) for path, header, steps in self._read()]

    def is_at_rest(self) -> bool:
        """Has all that decode reserved gone back to its pool?"""
        events = [step.event for _, header, steps in self._since() for step in steps if header.role == "decode"]
        back = {event.attempt for event in events if isinstance(event, Returning)}
        return {event.attempt for event in events if isinstance(event, Reserved)} <= back

    def has_reserved(self) -> bool:
        """Has decode reserved anything, which may be written from then on?"""
        return any(isinstance(step.event, Reserved) for _, _, steps in self._since() for step in steps)

    def replayed(self) -> dict[str, Found]:
        """Replay each role's that has written anything."""
        folder = Path(mkdtemp(prefix="cut-", dir=self._folder.parent))
        for path, header, steps in self._since():
            if steps:
                file = TraceFile(folder / path.name, BYTES_MAX)
                file.begin(header)
                for number, step in enumerate(steps, 1):
                    file.write(replace(step, n=number))
                file.close()
        if not any(folder.iterdir()):
            return {}
        document = traces.answered(folder)
        observed: dict[str, set[str]] = {}
        for each in document["coverage"]:
            if each["observed"]:
                observed.setdefault(each["place"], set()).add(each["guard"])
        return {
            trace["role"]: Found(
                trace["verdict"],
                trace["why"],
                frozenset(trace["violated"]),
                frozenset(observed.get(trace["role"], ())),
            )
            for trace in document["traces"]
        }


@contextmanager
def tampering(pair: Pair, word: str) -> Iterator[None]:
    """Let prefill promise what is not so (``tamper/``)."""
    file = pair.logs / TAMPER
    file.write_text(word, encoding="ascii")
    try:
        yield
    finally:
        file.write_text("", encoding="ascii")
