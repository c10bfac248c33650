"""What is done to a process, and undone. One more way to harm a pair (a network that parts) is one more class here."""

import os
import signal
from typing import Protocol


class Harm(Protocol):
    """Harms the process of one worker."""

    name: str

    def begin(self, pid: int) -> None:
        """Do it."""

    def end(self, pid: int) -> None:
        """Undo what can be undone, so that nothing outlives the test."""


class Kill:
    """kill -9: the kernel tells of it at once."""

    name = "killed"

    def begin(self, pid: int) -> None:
        """Kill."""
        os.kill(pid, signal.SIGKILL)

    def end(self, pid: int) -> None:
        """Nothing is left of it."""


class Stop:
    """SIGSTOP: the process looks alive to the kernel, and goes on where it stopped if it is let."""

    name = "stopped"

    def begin(self, pid: int) -> None:
        """Stop."""
        os.kill(pid, signal.SIGSTOP)

    def end(self, pid: int) -> None:
        """Continue, where it has not been killed meanwhile."""
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return


HARMS: tuple[Harm, ...] = (Kill(), Stop())
