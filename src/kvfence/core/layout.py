"""The byte layout of one page record, for any model: ``head | segments | tail``.

A pool is one byte buffer of shape [num_pages, record_bytes]. A page holds all layers. Each tensor of
each layer is one segment, so a pool-wide strided view of it is [num_pages, page_size, *shape].

Not for: building those views (``kv/storage.py``, ``kv/host.py``).
"""

import hashlib
from functools import cached_property
from math import prod

import msgspec
from msgspec import Struct

from kvfence.core.invariant import require
from kvfence.core.tags import HEAD_BYTES, TAIL_BYTES

ALIGNMENT = 256
"""Every offset in a record is a multiple of this many bytes."""

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "uint8": 1, "int8": 1}


def align(nbytes: int) -> int:
    """Round up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Segment(Struct, frozen=True):
    """One tensor of one layer in a page: keys, values, or a latent.

    Shapes:
        shape: per token, usually (num_kv_heads, head_dim).
    """

    name: str
    layer: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


class KVLayout(Struct, frozen=True, dict=True):
    """How one page's bytes lie: a head, every segment, a tail; one write covers the whole record.

    Two workers may exchange pages only if their layouts are equal (guard ``layout-agrees``).
    """

    page_size: int
    segments: tuple[Segment, ...]
    digest: str = "xxh3_128"
    parallelism: str = "tp1"

    def __post_init__(self) -> None:
        require(self.page_size >= 1, "page_size is at least 1")
        require(len(self.segments) >= 1, "a layout has at least one segment")

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Byte offset of each segment in a record."""
        offsets, at = [], align(HEAD_BYTES)
        for segment in self.segments:
            offsets.append(at)
            at += align(segment.token_bytes * self.page_size)
        return tuple(offsets)

    @cached_property
    def tail_offset(self) -> int:
        """Byte offset of the tail in a record."""
        return self.offsets[-1] + align(self.segments[-1].token_bytes * self.page_size)

    @cached_property
    def record_bytes(self) -> int:
        """Bytes of one page's record, head and tail included."""
        return self.tail_offset + align(TAIL_BYTES)

    @cached_property
    def body(self) -> slice:
        """The bytes between head and tail: what the digest covers."""
        return slice(self.offsets[0], self.tail_offset)

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that differ whenever two layouts differ."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]

    def num_pages(self, num_tokens: int) -> int:
        """Pages that hold this many tokens."""
        return -(-num_tokens // self.page_size)
