"""Tensors over the pool are the pool's bytes."""

import pytest

from kvfence.kv.storage import PoolBuffer, open_shared, pool_bytes
from tests.pools import LAYOUT, make_pool

torch = pytest.importorskip("torch")
host = pytest.importorskip("kvfence.kv.host")


def test_views_have_the_layouts_shapes_and_types() -> None:
    """One tensor for each segment, over all pages, a record apart."""
    views = host.host_views(make_pool(5), LAYOUT)
    assert [tuple(view.shape) for view in views] == [(5, 4, 2, 8), (5, 4, 2, 8), (5, 4, 24)]
    assert [view.dtype for view in views] == [torch.bfloat16, torch.bfloat16, torch.float32]
    assert [view.stride(0) * view.element_size() for view in views] == [LAYOUT.record_bytes] * 3


def test_a_write_through_a_view_lands_in_its_segment_alone() -> None:
    """Nothing is copied, and no other byte of the pool changes."""
    memory = open_shared(pool_bytes(LAYOUT, 3))
    pool = PoolBuffer(memory.buffer, LAYOUT, 3)
    host.host_views(pool, LAYOUT)[2][1, 3] = 1.0
    start = LAYOUT.offsets[2] + 3 * LAYOUT.segments[2].token_bytes
    end = start + LAYOUT.segments[2].token_bytes
    assert bytes(pool.records[1, start:end]) == b"\x00\x00\x80\x3f" * 24
    pool.records[1, start:end] = 0
    assert not pool.records.any()
    memory.close()
