"""Whatever is changed in a page changes its digest, and what is moved changes a hand-off's."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvfence.guard.digest import Bytes, multipliers, page_sums, weighted_sums

PAGES = 4
pools = st.integers(1, 80).flatmap(lambda words: arrays(np.uint8, (PAGES, 4 * words)))


def differs(pool: Bytes, changed: Bytes) -> bool:
    """Has any page of the two other sums?"""
    return bool((page_sums(pool) != page_sums(changed)).any())


@settings(max_examples=60, deadline=None)
@given(pool=pools, data=st.data())
def test_a_flipped_bit_is_seen(pool: Bytes, data: st.DataObject) -> None:
    """One bit, anywhere, changes its page's sums and no other page's."""
    page, at = data.draw(st.integers(0, PAGES - 1)), data.draw(st.integers(0, pool.shape[1] - 1))
    changed = pool.copy()
    changed[page, at] ^= 1 << data.draw(st.integers(0, 7))
    unlike = (page_sums(pool) != page_sums(changed)).all(axis=1)
    assert unlike.tolist() == [index == page for index in range(PAGES)]


@settings(max_examples=60, deadline=None)
@given(pool=pools, data=st.data())
def test_swapped_words_are_seen(pool: Bytes, data: st.DataObject) -> None:
    """Two different words of a page that change places change the digest."""
    words = pool.view("<u4")
    places = st.integers(0, words.shape[1] - 1)
    one, other = data.draw(places), data.draw(places)
    assume(words[0, one] != words[0, other])
    changed = pool.copy()
    changed.view("<u4")[0, [one, other]] = words[0, [other, one]]
    assert differs(pool, changed)


@settings(max_examples=40, deadline=None)
@given(pool=pools, order=st.permutations(range(PAGES)))
def test_swapped_pages_are_seen(pool: Bytes, order: list[int]) -> None:
    """Pages in another order are another hand-off, unless their bytes are the same."""
    changed = pool[order]
    assert differs(pool, changed) == (pool.tobytes() != changed.tobytes())


@settings(max_examples=40, deadline=None)
@given(pool=pools, by=st.integers(1, 12))
def test_shifted_bytes_are_seen(pool: Bytes, by: int) -> None:
    """Bytes that moved along change the digest, unless nothing moved."""
    changed = np.roll(pool.reshape(-1), by).reshape(pool.shape)
    assert differs(pool, changed) == (pool.tobytes() != changed.tobytes())


@settings(max_examples=40, deadline=None)
@given(pool=pools, words=st.integers(1, 8))
def test_a_longer_page_of_zeros_is_another(pool: Bytes, words: int) -> None:
    """Zeros behind a page are no part of it that goes unseen."""
    longer = np.pad(pool, ((0, 0), (0, 4 * words)))
    assert (page_sums(pool) != page_sums(longer)).all()


@settings(max_examples=40, deadline=None)
@given(pool=pools, cut=st.integers(0, PAGES))
def test_pieces_give_the_same_as_the_whole(pool: Bytes, cut: int) -> None:
    """Pages digested chunk by chunk have the sums that they have together."""
    pieces = np.concatenate([page_sums(pool[:cut]), page_sums(pool[cut:])])
    assert (pieces == page_sums(pool)).all()


@pytest.mark.parametrize("weak", ["alike", "even"])
def test_weaker_multipliers_are_found_out(weak: str) -> None:
    """With multipliers that are all alike a swap passes; with even ones a flipped top bit does."""
    words = np.arange(8, dtype=np.uint32)[None]
    changed = words[:, [1, 0, *range(2, 8)]] if weak == "alike" else words ^ np.uint32(2**31)
    right = multipliers(8)
    wrong = np.full_like(right, 5) if weak == "alike" else right << np.uint64(33)
    assert (weighted_sums(words, wrong) == weighted_sums(changed, wrong)).all()
    assert (weighted_sums(words, right) != weighted_sums(changed, right)).all()
