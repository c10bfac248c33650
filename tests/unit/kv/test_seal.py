"""Seals, and what a verification reports of bytes that are not what was promised."""

import numpy as np
import pytest

from kvfence.core.errors import LayoutMismatch, StampMismatch
from kvfence.core.invariant import InvariantBroken
from kvfence.core.layout import KVLayout
from kvfence.core.tags import PageTag
from kvfence.kv.seal import (
    copy_tail_page,
    handoff_digest,
    pack_heads,
    pack_tags,
    read_head,
    read_stamp,
    require_digest,
    seal_page,
    seal_pages,
    verify_pages,
    write_head,
)
from kvfence.kv.storage import PoolBuffer
from tests.pools import DECODE, LAYOUT, PREFILL, fill, make_pool, tags_of


def sealed_pool() -> tuple[PoolBuffer, list[PageTag], str]:
    """Make a pool whose pages 3, 1 and 6 hold ten tokens, in this order."""
    pool = make_pool()
    tags = tags_of(PREFILL, 5, [3, 1, 6])
    return pool, tags, fill(pool, tags, 10, 0xAB)


def test_sealed_pages_verify_clean() -> None:
    """What was sealed and not touched shows no fault, and the digest that the manifest promises."""
    pool, tags, digest = sealed_pool()
    report = verify_pages(pool, [3, 1, 6], tags, 10)
    assert report.clean
    assert (report.num_pages, report.num_tokens, report.digest) == (3, 10, digest)


def test_a_seal_is_read_back_as_it_was_given() -> None:
    """The stamp behind the bytes is the stamp that sealing returned."""
    pool = make_pool()
    tag = tags_of(PREFILL, 5, [2])[0]
    write_head(pool, [2], [tag])
    stamp = seal_page(pool, tag, 3)
    assert read_stamp(pool, 2) == stamp
    assert (stamp.origin, stamp.num_tokens, len(stamp.digest)) == (tag, 3, 16)


def test_a_page_under_another_tag_is_not_sealed() -> None:
    """Whoever wrote a foreign head may still be writing: sealing refuses and leaves no stamp."""
    pool = make_pool()
    ours, theirs = PageTag(PREFILL, 5, 2), PageTag(PREFILL, 4, 2)
    write_head(pool, [2], [theirs])
    with pytest.raises(StampMismatch, match="quarantine"):
        seal_page(pool, ours, 4)
    assert not pool.records[2, LAYOUT.tail_offset :].any()


@pytest.mark.parametrize("num_tokens", [0, 5])
def test_a_count_outside_the_page_is_a_bug(num_tokens: int) -> None:
    """A sealed page holds between one token and page_size of them."""
    pool = make_pool()
    tag = PageTag(PREFILL, 5, 2)
    write_head(pool, [2], [tag])
    with pytest.raises(InvariantBroken):
        seal_page(pool, tag, num_tokens)


def test_reserved_but_unwritten_pages_are_bad() -> None:
    """The incident: one page of three was written; the two that were only reserved show whose bytes they hold."""
    pool = make_pool()
    former = tags_of(PREFILL, 2, [3, 1, 6])
    fill(pool, former, 12, 0x11)
    ours = tags_of(PREFILL, 5, [3, 1, 6])
    fill(pool, ours[:1], 4, 0x22)
    report = verify_pages(pool, [3, 1, 6], ours, 10)
    assert report.bad_head == report.bad_tail == (1, 6)
    assert not report.stamps_match


def test_pages_nothing_was_promised_for_are_bad() -> None:
    """A destination page without an expected origin never verifies, whatever it holds."""
    pool, tags, _ = sealed_pool()
    report = verify_pages(pool, [3, 1, 6], [tags[0], None, None], 10)
    assert report.bad_head == report.bad_tail == (1, 6)


def test_swapped_pages_are_bad() -> None:
    """Two writes that land in each other's place both show."""
    pool, tags, _ = sealed_pool()
    report = verify_pages(pool, [1, 3, 6], tags, 10)
    assert report.bad_head == report.bad_tail == (1, 3)


def test_a_torn_page_shows_behind_its_bytes() -> None:
    """A write that stopped half-way has the right head and the former holder's tail."""
    pool = make_pool()
    fill(pool, tags_of(PREFILL, 2, [3]), 4, 0x11)
    tag = PageTag(PREFILL, 5, 3)
    write_head(pool, [3], [tag])
    pool.body(3)[:100] = 0x22
    report = verify_pages(pool, [3], [tag], 4)
    assert (report.bad_head, report.bad_tail, report.bad_digest) == ((), (3,), (3,))
    assert report.num_tokens == 0


def test_another_number_of_tokens_is_bad() -> None:
    """The stamp of the last page says how many tokens were written, whatever the message said."""
    pool, tags, _ = sealed_pool()
    assert verify_pages(pool, [3, 1, 6], tags, 11).bad_count == (6,)


def test_without_zeroing_the_former_holders_slots_stay_visible() -> None:
    """Guard zero-tail: taken away, another tenant's bytes stand behind the last valid token; with it, none do."""
    found = {}
    for zero_tail in (False, True):
        pool = make_pool()
        fill(pool, tags_of(PREFILL, 2, [3]), 4, 0x55)
        tag = PageTag(PREFILL, 5, 3)
        write_head(pool, [3], [tag])
        sealed = seal_pages(pool, [tag], 1, zero_tail=zero_tail)
        assert sealed.zeroed is zero_tail
        start = LAYOUT.offsets[0] + LAYOUT.segments[0].token_bytes
        stale = bool((pool.records[3, start : start + 3 * LAYOUT.segments[0].token_bytes] == 0x55).any())
        found[zero_tail] = (stale, verify_pages(pool, [3], [tag], 1).stale_slots)
    assert found == {False: (True, (3,)), True: (False, ())}


def test_zeroing_keeps_the_valid_slots() -> None:
    """Only slots behind the last valid token are zeroed, in every segment."""
    pool = make_pool()
    tag = PageTag(PREFILL, 5, 3)
    write_head(pool, [3], [tag])
    pool.body(3)[:] = 0x55
    seal_page(pool, tag, 3)
    for segment, offset in zip(LAYOUT.segments, LAYOUT.offsets, strict=True):
        end = offset + 3 * segment.token_bytes
        assert (pool.records[3, offset:end] == 0x55).all()
        assert not pool.records[3, end : end + segment.token_bytes].any()


def test_a_digest_depends_on_the_order_of_pages() -> None:
    """The hand-off's digest is over the stamps in prompt order."""
    pool, tags, digest = sealed_pool()
    stamps = [read_stamp(pool, tag.page) for tag in tags]
    assert handoff_digest(stamps) == digest != handoff_digest(stamps[::-1])


def test_a_tail_page_is_copied_under_decodes_own_tag() -> None:
    """The copy has the bytes and decode's head, and no stamp of anybody's."""
    pool, tags, _ = sealed_pool()
    own = PageTag(DECODE, 8, 0)
    copy_tail_page(pool, 6, tags[2], own)
    assert read_head(pool, 0) == own
    assert (pool.body(0) == pool.body(6)).all()
    assert not pool.records[0, LAYOUT.tail_offset :].any()
    assert read_head(pool, 6) == tags[2]


def test_a_tail_page_that_changed_is_not_copied_unseen() -> None:
    """A stray write into the source of the copy is an error of the copy."""
    pool, tags, _ = sealed_pool()
    write_head(pool, [6], [PageTag(PREFILL, 4, 6)])
    with pytest.raises(StampMismatch, match="quarantine"):
        copy_tail_page(pool, 6, tags[2], PageTag(DECODE, 8, 0))


def test_heads_packed_at_once_equal_heads_packed_one_by_one() -> None:
    """Both ways to make heads give the same bytes."""
    tags = tags_of(PREFILL, 5, [3, 1, 6])
    assert np.array_equal(pack_heads(PREFILL, 5, [3, 1, 6]), pack_tags(tags))


def test_another_digest_name_is_refused() -> None:
    """A layout whose digest this build does not compute is named."""
    require_digest(LAYOUT)
    with pytest.raises(LayoutMismatch, match="crc32"):
        require_digest(KVLayout(4, LAYOUT.segments, digest="crc32"))
