"""Whatever single byte of a sealed page changes, a verification names that page."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfence.core.tags import TAIL_BYTES
from kvfence.kv.seal import verify_pages
from tests.pools import LAYOUT, PREFILL, fill, make_pool, tags_of

TAIL = LAYOUT.tail_offset
PLACES = {
    "head": (st.integers(0, 31), "bad_head"),
    "body": (st.integers(LAYOUT.body.start, LAYOUT.body.stop - 1), "bad_digest"),
    "tail's tag": (st.integers(TAIL, TAIL + 31), "bad_tail"),
    "tail's count": (st.integers(TAIL + 32, TAIL + 39), "bad_count"),
    "tail's digest": (st.integers(TAIL + 40, TAIL + TAIL_BYTES - 9), "bad_digest"),
}


@pytest.mark.parametrize("place", list(PLACES))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_found_where_it_is(place: str, data: st.DataObject) -> None:
    """A flip in head, body, or any part of the tail shows as its own kind of fault, on its page and no other."""
    offsets, kind = PLACES[place]
    pool = make_pool(3)
    tags = tags_of(PREFILL, 5, [2, 0, 1])
    fill(pool, tags, 12, data.draw(st.integers(0, 255)))
    page = data.draw(st.sampled_from([0, 1, 2]))
    pool.records[page, data.draw(offsets)] ^= data.draw(st.integers(1, 255))
    report = verify_pages(pool, [2, 0, 1], tags, 12)
    assert getattr(report, kind) == (page,)
    assert not report.clean
