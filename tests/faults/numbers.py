"""Numbers that the fault runs measure: a table at the end of the run, and JSON beside it, with the machine's facts.

Written to ``build/faults/``, one file a run of one subject.
"""

import os
import platform
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec import Struct

FOLDER = Path(__file__).parents[2] / "build" / "faults"


class Machine(Struct, frozen=True):
    """Where it was measured."""

    processor: str
    num_cores: int
    memory_gib: float
    kernel: str
    python: str
    load_1_min: float


class Numbers:
    """What one test measured: single values by name, and rows of which the table shows count, median and worst."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.values: dict[str, Any] = {}
        self.rows: dict[str, list[float]] = {}

    def note(self, **values: Any) -> None:
        """Note single values."""
        self.values |= values

    def add(self, name: str, value: float) -> None:
        """Add one of many."""
        self.rows.setdefault(name, []).append(round(value, 3))

    def table(self) -> list[tuple[str, str]]:
        """Give what there is to show."""
        shown = [(name, str(value)) for name, value in self.values.items()]
        for name, values in sorted(self.rows.items()):
            middle = sorted(values)[len(values) // 2]
            shown.append((f"{name}, answered after", f"{len(values)} times, median {middle} s, worst {max(values)} s"))
        return shown

    def write(self) -> None:
        """Write it as JSON."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        document = {"subject": self.subject, "machine": machine(), "values": self.values, "rows": self.rows}
        (FOLDER / f"{self.subject}.json").write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")


def machine() -> Machine:
    """Look at the machine."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return Machine(
        processor=name,
        num_cores=os.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        load_1_min=round(os.getloadavg()[0], 2),
    )
