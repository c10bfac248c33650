"""What the guard calls in SGLang by name, and nothing else does: the seam behind which tests put a stand-in."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

from msgspec import Struct

TOLD = 500
"""How the guard's own refusals reach clients: 0.5.19 tells of 400, 500 and 503 alone, and makes of others a 200."""


BUSY_S = 0.05
"""For which another thread's sending to the same peer is waited for."""

FAKE_HOST = "2.2.2.2"
"""SGLang's stand-in for prefill in its own probes, which any request may name; nothing travels."""


class Engine(Protocol):
    """SGLang, as far as the guard calls it."""

    def name(self) -> str:
        """Give the engine's name and release."""

    def manager(self, manager: Any) -> str:
        """Give the name of what moves pages: a class of SGLang's for each transfer backend."""

    def poll(self, name: str) -> Any:
        """Give one state of a transfer by its name: Failed, Success."""

    def prepare_abort(self, req: Any, message: str, status: int) -> None:
        """End a request with an error for its client."""

    def finish_abort(self, req: Any, message: str) -> None:
        """End a running request with an error: the token of the pass under way does not count."""

    def keeps_out(self, req: Any) -> bool:
        """Will the engine itself keep this request out of its queue, because it has refused it?"""

    def agree(self, flags: Sequence[bool], group: Any) -> list[bool]:
        """Give which flags hold on every rank of a group."""

    def send_nowait(self, socket: Any, frames: list[bytes]) -> bool:
        """Send a message, or drop it where the socket is full."""

    def send_to(self, manager: Any, address: str, frames: list[bytes]) -> bool:
        """Send a message on the engine's own connection to an address, or drop it where that is full or busy."""


class _Flag(Struct, frozen=True):
    """Answers the engine's own vote with one of our flags."""

    value: int

    def poll(self) -> int:
        """Give it."""
        return self.value


class SGLang:
    """The engine itself, imported when it is called: its modules import the guard's hooks before they are whole."""

    def name(self) -> str:
        """Give the engine's name and release."""
        try:
            return f"sglang {version('sglang')}"
        except PackageNotFoundError:
            return "sglang of an unknown release"

    def manager(self, manager: Any) -> str:
        """Give the name of what moves pages: a class of SGLang's for each transfer backend."""
        return type(manager).__name__

    def poll(self, name: str) -> Any:
        """Give one state of a transfer by its name: Failed, Success."""
        from sglang.srt.disaggregation.base import KVPoll  # type: ignore[import-not-found, unused-ignore]

        return getattr(KVPoll, name)

    def prepare_abort(self, req: Any, message: str, status: int) -> None:
        """End a request with an error for its client."""
        from http import HTTPStatus

        from sglang.srt.disaggregation.utils import prepare_abort  # type: ignore[import-not-found, unused-ignore]

        prepare_abort(req, message, status_code=HTTPStatus(status))

    def finish_abort(self, req: Any, message: str) -> None:
        """End a running request with an error: the token of the pass under way does not count."""
        from http import HTTPStatus

        from sglang.srt.managers.schedule_batch import (  # type: ignore[import-not-found, unused-ignore]
            FINISH_ABORT,
        )

        req.to_finish = FINISH_ABORT(message, HTTPStatus(TOLD))

    def keeps_out(self, req: Any) -> bool:
        """Will the engine itself keep this request out of its queue, because it has refused it? From 0.5.21 on."""
        from sglang.srt.disaggregation import utils  # type: ignore[import-not-found, unused-ignore]

        is_kept_out = getattr(utils, "is_unadmitted_reject", None)
        return is_kept_out is not None and bool(is_kept_out(req))

    def agree(self, flags: Sequence[bool], group: Any) -> list[bool]:
        """Give which flags hold on every rank of a group, by the vote that SGLang takes on its transfers."""
        from sglang.srt.disaggregation.utils import (  # type: ignore[import-not-found, unused-ignore]
            poll_and_all_reduce,
        )

        return [bool(value) for value in poll_and_all_reduce([_Flag(int(flag)) for flag in flags], group)]

    def send_nowait(self, socket: Any, frames: list[bytes]) -> bool:
        """Send a message, or drop it where the socket is full: whoever sends again loses nothing by that."""
        import zmq

        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError:  # full, or closed meanwhile
            return False
        return True

    def send_to(self, manager: Any, address: str, frames: list[bytes]) -> bool:
        """Send a message on the engine's own connection to an address, or drop it where that is full or busy.

        The engine itself waits for half a minute, with its scheduler, and ends by an exception.
        """
        socket = manager._connect(address, is_ipv6="[" in address)
        lock = manager._socket_send_locks[address]
        if not lock.acquire(timeout=BUSY_S):
            return False
        try:
            return self.send_nowait(socket, frames)
        finally:
            lock.release()
