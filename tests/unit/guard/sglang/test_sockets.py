"""The guard's frames leave and enter beside the engine's, which never sees them."""

from kvfence.guard.sglang.sockets import MAGIC, Frames, ReadSocket, WriteSocket


class Pipe:
    """A socket that gives back what was put in."""

    def __init__(self, *messages: Frames) -> None:
        self.messages = list(messages)

    def recv_multipart(self) -> Frames:
        """Give the oldest."""
        return self.messages.pop(0)

    def send_multipart(self, frames: Frames) -> None:
        """Put one in."""
        self.messages.append(frames)


def test_the_engine_reads_its_own_messages_alone() -> None:
    """A message of the guard's is taken out whole; one that rides behind is cut off."""
    taken: list[tuple[bytes, bytes, Frames]] = []
    pipe = Pipe([MAGIC, b"mac", b"body"], [b"5", b"host", MAGIC, b"mac2", b"body2"], [b"6", b"4", b"0"])
    socket = ReadSocket(pipe, lambda mac, body, rest: taken.append((mac, body, rest)))
    assert socket.recv_multipart() == [b"5", b"host"]
    assert socket.recv_multipart() == [b"6", b"4", b"0"]
    assert taken == [(b"mac", b"body", []), (b"mac2", b"body2", [b"5", b"host"])]


def test_the_guards_frames_ride_behind_the_engines() -> None:
    """A peer that reads by position finds every frame of the engine's where it was."""
    pipe = Pipe()
    socket = WriteSocket(pipe, lambda frames: (b"mac", b"body") if frames[0] == b"None" else None)
    socket.send_multipart([b"None", b"host"])
    socket.send_multipart([b"7"])
    assert pipe.messages == [[b"None", b"host", MAGIC, b"mac", b"body"], [b"7"]]
