"""Small pools of a made-up layout, for tests of what happens to their bytes."""

import numpy as np

from kvfence.core.ids import AttemptId, BatchId, Incarnation
from kvfence.core.layout import KVLayout, Segment
from kvfence.core.tags import PageTag
from kvfence.kv.seal import handoff_digest, pack_tags, seal_pages, write_head
from kvfence.kv.storage import Pages, PoolBuffer, pool_bytes
from kvfence.wire.transport import PageBatch

PREFILL = Incarnation("a" * 32)
DECODE = Incarnation("d" * 32)
GATEWAY = Incarnation("e" * 32)
ATTEMPT = AttemptId(GATEWAY, 1)

LAYOUT = KVLayout(
    4,
    (
        Segment("key", 0, (2, 8), "bfloat16"),
        Segment("value", 0, (2, 8), "bfloat16"),
        Segment("latent", 1, (24,), "float32"),
    ),
)
"""Two layers of unlike shape; every segment ends in padding."""


def make_pool(num_pages: int = 8, layout: KVLayout = LAYOUT) -> PoolBuffer:
    """Make a zeroed pool over plain bytes."""
    return PoolBuffer(bytearray(pool_bytes(layout, num_pages)), layout, num_pages)


def tags_of(incarnation: Incarnation, serial: int, pages: Pages) -> list[PageTag]:
    """Give the tags of one grant."""
    return [PageTag(incarnation, serial, int(page)) for page in pages]


def fill(pool: PoolBuffer, tags: list[PageTag], num_tokens: int, value: int) -> str:
    """Write heads, fill every byte of the bodies with a value, seal; give the hand-off's digest."""
    pages = [tag.page for tag in tags]
    write_head(pool, pages, pack_tags(tags))
    for page in pages:
        pool.body(page)[:] = value
    return handoff_digest(seal_pages(pool, tags, num_tokens).stamps)


def batch_of(source: list[int], destination: list[int], decode: Incarnation = DECODE) -> PageBatch:
    """Make a batch of the one attempt."""
    return PageBatch(ATTEMPT, BatchId(1), decode, tuple(source), tuple(destination))


def body_is(pool: PoolBuffer, page: int, value: int) -> bool:
    """Whether every byte of a full page's body has this value."""
    return bool(np.all(pool.body(page) == value))
