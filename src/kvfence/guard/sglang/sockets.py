"""The guard's messages on the engine's own sockets: taken out before the engine reads, put behind what it writes.

To decode a message of ours is three frames of its own, sent only to who has said ``Hello``. To prefill it rides behind
the engine's frames, which a prefill without the guard does not read.
"""

from collections.abc import Callable
from typing import Any

MAGIC = b"KVFENCE"
FRAMES = 3
"""The magic, the code, the body."""

Frames = list[bytes]


class ReadSocket:
    """The engine's receiving socket without the guard's frames.

    ``take``: is given the guard's code and body, and the engine's frames that they came behind (none where alone).
    """

    def __init__(self, socket: Any, take: Callable[[bytes, bytes, Frames], None]) -> None:
        self._socket, self._take = socket, take

    def recv_multipart(self, *given: Any, **named: Any) -> Frames:
        """Give the next message that is the engine's."""
        while True:
            frames: Frames = self._socket.recv_multipart(*given, **named)
            if len(frames) < FRAMES or frames[-FRAMES] != MAGIC:
                return frames
            rest = frames[:-FRAMES]
            self._take(frames[-2], frames[-1], rest)
            if rest:
                return rest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class WriteSocket:
    """The engine's sending socket, with the guard's frames behind each message that has some.

    ``behind``: gives (code, body) for a message, or None.
    """

    def __init__(self, socket: Any, behind: Callable[[Frames], tuple[bytes, bytes] | None]) -> None:
        self._socket, self._behind = socket, behind

    def send_multipart(self, frames: Frames, *given: Any, **named: Any) -> Any:
        """Send a message of the engine's."""
        ours = self._behind(frames)
        whole = [*frames, MAGIC, *ours] if ours is not None else frames
        return self._socket.send_multipart(whole, *given, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)
