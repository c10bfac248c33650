"""The switch between a fenced and an unfenced server, for all its processes: a file that says *off*."""

import os
from pathlib import Path

VARIABLE = "KVFENCE_BENCH_SWITCH"


class Switch:
    """Turned only while no request is open."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def from_environment(cls) -> "Switch":
        """Give the switch this process was started with."""
        return cls(Path(os.environ[VARIABLE]))

    def turn(self, *, fenced: bool) -> None:
        """Turn the fence on or off."""
        if fenced:
            self._path.unlink(missing_ok=True)
        else:
            self._path.touch()

    @property
    def fenced(self) -> bool:
        """Whether the fence is on; looked up in every pass, alike for both."""
        return not os.path.exists(self._path)
