"""The comparison of a batch's heads: exact, and cheap to keep as sequences come, grow and go."""

import numpy as np
import pytest

from kvfence.core.invariant import InvariantBroken
from kvfence.core.tags import PageTag
from kvfence.kv.compare import BatchTable
from kvfence.kv.seal import pack_heads, write_head
from kvfence.kv.storage import PoolBuffer
from tests.pools import DECODE, PREFILL, make_pool


def batch() -> tuple[PoolBuffer, BatchTable]:
    """Make two sequences: "a" on pages 5, 2 and 7, "b" on page 0."""
    pool = make_pool()
    table = BatchTable(pool)
    for name, serial, pages in (("a", 3, [5, 2, 7]), ("b", 4, [0])):
        heads = pack_heads(PREFILL, serial, pages)
        write_head(pool, pages, heads)
        table.add(name, pages, heads)
    return pool, table


def test_pages_as_expected_give_nothing() -> None:
    """When all is right, no position is given."""
    _, table = batch()
    assert len(table.compare()) == 0


def test_an_empty_table_is_right() -> None:
    """No pages, no mismatch."""
    assert len(BatchTable(make_pool()).compare()) == 0


@pytest.mark.parametrize("byte", range(32))
def test_every_byte_of_a_head_counts(byte: int) -> None:
    """One changed bit in any of a head's 32 bytes is found, on its page and its sequence alone."""
    pool, table = batch()
    pool.records[2, byte] ^= 1
    bad = table.compare()
    assert table.pages_at(bad) == [2]
    assert table.sequences_at(bad) == {"a"}


def test_all_bad_pages_are_named() -> None:
    """One comparison names every bad page of every sequence."""
    pool, table = batch()
    write_head(pool, [7, 0], pack_heads(PREFILL, 9, [7, 0]))
    bad = table.compare()
    assert sorted(table.pages_at(bad)) == [0, 7]
    assert table.sequences_at(bad) == {"a", "b"}


def test_a_dropped_sequence_is_not_compared() -> None:
    """After a drop the pages may be anyone's, and the others are still compared."""
    pool, table = batch()
    table.drop("a")
    write_head(pool, [5, 2, 7], pack_heads(PREFILL, 9, [5, 2, 7]))
    assert (len(table), len(table.compare())) == (1, 0)
    pool.records[0, 3] ^= 1
    assert table.sequences_at(table.compare()) == {"b"}


def test_dropping_what_is_not_there_is_nothing() -> None:
    """A second drop changes nothing."""
    _, table = batch()
    table.drop("a")
    table.drop("a")
    table.drop("never")
    assert len(table) == 1


def test_a_sequence_grows() -> None:
    """Pages added later, under another tag, are compared with the rest."""
    pool, table = batch()
    own = PageTag(DECODE, 6, 4)
    write_head(pool, [4], [own])
    table.add("b", [4], pack_heads(DECODE, 6, [4]))
    assert len(table.compare()) == 0
    pool.records[4, 20] ^= 1
    assert table.sequences_at(table.compare()) == {"b"}


def test_a_page_outside_the_pool_is_a_bug() -> None:
    """Such a page is refused and the table is as it was."""
    _, table = batch()
    for page in (-1, 8):
        with pytest.raises(InvariantBroken):
            table.add("a", [page], pack_heads(PREFILL, 1, [page % 8]))
    assert (len(table), len(table.compare())) == (4, 0)


def test_many_sequences_come_and_go() -> None:
    """However sequences come and go, exactly the pages of those that stay are compared."""
    pool = make_pool(512)
    table = BatchTable(pool)
    random = np.random.default_rng(7)
    held: dict[int, list[int]] = {}
    free = list(range(512))
    for sequence in range(200):
        if held and random.random() < 0.4:
            gone = int(random.choice(list(held)))
            free += held.pop(gone)
            table.drop(gone)
        pages = [free.pop() for _ in range(min(len(free), int(random.integers(0, 12))))]
        heads = pack_heads(PREFILL, sequence + 1, pages)
        write_head(pool, pages, heads)
        table.add(sequence, pages, heads)
        held[sequence] = pages
    assert len(table.compare()) == 0
    pool.heads[:, 2] += 1
    bad = table.compare()
    assert sorted(table.pages_at(bad)) == sorted(page for pages in held.values() for page in pages)
    assert table.sequences_at(bad) == {sequence for sequence, pages in held.items() if pages}
