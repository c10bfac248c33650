"""Tags and stamps: what names one use of one page, and what a writer leaves with the bytes.

Not for: where head and tail stand in a record (``layout.py``) or for computing digests (``kv/seal.py``).
"""

import struct

from msgspec import Struct

from kvfence.core.ids import Incarnation

HEAD_BYTES = 32
"""A head is a packed tag: incarnation (16), serial (8), page (8), little-endian."""

TAIL_BYTES = 64
"""A tail is a packed stamp: head (32), number of tokens (8), digest (16), zero padding (8)."""

_HEAD = struct.Struct("<16sQQ")
_TAIL = struct.Struct("<32sQ16s8x")


class PageTag(Struct, frozen=True, order=True, array_like=True):
    """Names one use of one page; it never returns."""

    incarnation: Incarnation
    serial: int
    page: int

    def pack(self) -> bytes:
        """Give the tag as it stands in a head. Shapes: [HEAD_BYTES]."""
        return _HEAD.pack(bytes.fromhex(self.incarnation), self.serial, self.page)


class PageStamp(Struct, frozen=True, array_like=True):
    """What the writer of a page left with the bytes.

    Units:
        num_tokens: valid tokens, 1 .. page_size.
        digest: 16 bytes over all segments of the record, unused slots zeroed.
    """

    origin: PageTag
    num_tokens: int
    digest: bytes

    def pack(self) -> bytes:
        """Give the stamp as it stands in a tail. Shapes: [TAIL_BYTES]."""
        return _TAIL.pack(self.origin.pack(), self.num_tokens, self.digest)


def unpack_tag(head: bytes) -> PageTag:
    """Read a packed tag; any 32 bytes are some tag, so this never fails."""
    incarnation, serial, page = _HEAD.unpack(head)
    return PageTag(Incarnation(incarnation.hex()), serial, page)


def unpack_stamp(tail: bytes) -> PageStamp:
    """Read a packed stamp; any 64 bytes are some stamp, so this never fails."""
    head, num_tokens, digest = _TAIL.unpack(tail)
    return PageStamp(unpack_tag(head), num_tokens, digest)
