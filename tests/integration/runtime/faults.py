"""How a test reaches into a running pair: files in one folder, named by an environment variable.

``fault.json`` arms one fault in prefill; ``fired.json`` says that it has begun, and at which page. While ``hold``
exists, decode computes no token beyond the position in it; while ``hang`` exists, a hanging write hangs; while
``hold-compute`` exists, prefill computes no prompt, while ``hold-verify`` exists, decode verifies none, that has as
many pages as it says. Who waits at such a hold says so in ``waits-compute`` or ``waits-verify``.
"""

import math
import os
import time
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

FOLDER = "TEST_FAULTS_FOLDER"

Kind = Literal["stop", "hang", "corrupt", "break", "misdirect", "forget", "spoil"]
Hold = Literal["compute", "verify"]


class Fault(Struct, frozen=True):
    """What goes wrong, with one page write except for *forget*: then the page table forgets a page's state; and for
    *spoil*: then a page of prefill's own pool is written over.

    ``after``: part of the record that has landed when it happens; a stop or hang in between tears the page.
    ``nth``: which page write since it was armed. ``page``: where a misdirected write goes instead, or which is spoilt.
    ``pages_min``: only in a batch of at least so many pages.
    """

    kind: Kind
    after: Literal["head", "body"] = "head"
    nth: int = 1
    page: int = -1
    pages_min: int = 1


class Fired(Struct, frozen=True):
    """A fault has begun, while this page of decode's pool was being written."""

    page: int


class FaultFolder:
    """Both sides of the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def from_environment(cls) -> "FaultFolder":
        """Give the folder this process was started with."""
        return cls(Path(os.environ[FOLDER]))

    def arm(self, fault: Fault) -> None:
        """Arm one fault."""
        (self.path / "fired.json").unlink(missing_ok=True)
        self._put("fault.json", msgspec.json.encode(fault))

    def armed(self) -> Fault | None:
        """The fault that waits to happen."""
        try:
            return msgspec.json.decode((self.path / "fault.json").read_bytes(), type=Fault)
        except FileNotFoundError:
            return None

    def fire(self, page: int) -> bool:
        """Say that it happens now. Returns: False where another worker was first, for it happens once."""
        try:
            (self.path / "fault.json").unlink()
        except FileNotFoundError:
            return False
        self._put("fired.json", msgspec.json.encode(Fired(page)))
        return True

    def fired(self) -> Fired | None:
        """What happened, if it did."""
        try:
            return msgspec.json.decode((self.path / "fired.json").read_bytes(), type=Fired)
        except FileNotFoundError:
            return None

    def hold(self, position: int) -> None:
        """Let decode compute no token whose input stands at this position or beyond."""
        self._put("hold", str(position).encode())

    def held(self) -> int | None:
        """The position decode may not pass."""
        try:
            return int((self.path / "hold").read_bytes())
        except FileNotFoundError:
            return None

    def hold_large(self, what: Hold, pages_min: int) -> None:
        """Let no prompt of so many pages through."""
        self._put(f"hold-{what}", str(pages_min).encode())

    def wait_while_held(self, what: Hold, num_pages: int) -> None:
        """Wait at a hold, if it is for so many pages."""
        while num_pages >= self._least(f"hold-{what}"):
            self._put(f"waits-{what}", b"")
            time.sleep(0.005)

    def _least(self, name: str) -> float:
        try:
            return int((self.path / name).read_bytes())
        except FileNotFoundError:
            return math.inf

    def waits(self, what: Hold) -> bool:
        """Does somebody wait at this hold?"""
        return (self.path / f"waits-{what}").exists()

    def let_go(self) -> None:
        """End hold and hang, and disarm."""
        names = ("hold", "hang", "fault.json", "hold-compute", "hold-verify", "waits-compute", "waits-verify")
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def hang(self) -> None:
        """Make hanging writes hang."""
        self._put("hang", b"")

    def hangs(self) -> bool:
        """Whether a hanging write still hangs."""
        return (self.path / "hang").exists()

    def _put(self, name: str, content: bytes) -> None:
        half = self.path / f".{name}"
        half.write_bytes(content)
        half.rename(self.path / name)
