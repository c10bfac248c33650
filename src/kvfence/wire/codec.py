"""Messages as bytes: MessagePack of tagged Structs, bounded in size.

Not for: what may be said when (``protocol/``) or how bytes travel (``control.py``).
"""

from typing import Generic, TypeVar

import msgspec

from kvfence.core.errors import LocalProtocolError, RemoteProtocolError
from kvfence.wire.frames import Frame

T = TypeVar("T")

FRAME_BYTES_MAX = 16 << 20
"""Largest frame: a prompt of a million tokens with its page list is below 6 MB."""


class Codec(Generic[T]):
    """Encodes and decodes values of one type; unknown, malformed or oversized frames are the peer's fault."""

    def __init__(self, of: type[T], frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(of)

    def encode(self, value: T) -> bytes:
        """Give the frame of a value.

        Raises:
            LocalProtocolError: the frame is larger than the bound: whoever made the value must bound it.
        """
        frame = self._encoder.encode(value)
        if len(frame) > self.frame_bytes_max:
            raise LocalProtocolError(f"a frame of {len(frame)} bytes exceeds {self.frame_bytes_max}")
        return frame

    def decode(self, frame: bytes) -> T:
        """Read a frame; the error never quotes its content.

        Raises:
            RemoteProtocolError: too large, not MessagePack, or not a value of this type.
        """
        if len(frame) > self.frame_bytes_max:
            raise RemoteProtocolError(f"a frame of {len(frame)} bytes exceeds {self.frame_bytes_max}")
        try:
            return self._decoder.decode(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteProtocolError(f"a frame of {len(frame)} bytes cannot be read: {type(error).__name__}") from None


def frame_codec() -> Codec[Frame]:
    """Make the codec of everything that crosses a control socket."""
    return Codec(Frame)
