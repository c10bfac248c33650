"""The digest that hosts and devices compute alike: its values are pinned, and what it cannot digest is refused."""

import numpy as np
import pytest

from kvfence.core.errors import LayoutMismatch
from kvfence.guard.digest import multipliers, page_sums

MASK = 2**64 - 1
PINNED_SUMS = [[8313814898315007491, 12554756077280352073], [2233913351227327491, 1112297495991693929]]


def by_hand(page: bytes) -> list[int]:
    """Compute a page's sums as the docstring says, with Python's own integers."""
    words = [int.from_bytes(page[at : at + 4], "little") for at in range(0, len(page), 4)]
    sums = []
    for stream in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03):
        total = 0
        for position, word in enumerate([*words, 1]):
            state = (position + 1) * stream & MASK
            state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
            state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
            total = total + word * (state ^ state >> 31 | 1) & MASK
        sums.append(total)
    return sums


def test_it_is_what_it_says() -> None:
    """A slow reading of the definition gives the same sums, across the blocks that the quick one takes."""
    pages = np.random.default_rng(5).integers(0, 256, (3, 4 * 20_000), dtype=np.uint8)
    assert page_sums(pages).tolist() == [by_hand(page.tobytes()) for page in pages]


def test_its_values_are_pinned() -> None:
    """Two releases that name the same digest compute the same: these values never change under this name."""
    assert page_sums(np.arange(32, dtype=np.uint8).reshape(2, 16)).tolist() == PINNED_SUMS


def test_pages_that_are_not_side_by_side_are_read_as_rows() -> None:
    """A view with gaps between its pages has the sums of its rows."""
    wide = np.random.default_rng(6).integers(0, 256, (5, 64), dtype=np.uint8)
    assert (page_sums(wide[::2, 8:40]) == page_sums(wide[::2, 8:40].copy())).all()


def test_no_pages_have_no_sums() -> None:
    """Nothing is a hand-off of no pages, and not an error."""
    assert page_sums(np.empty((0, 16), dtype=np.uint8)).shape == (0, 2)


@pytest.mark.parametrize("page_bytes", [0, 2, 6])
def test_a_page_that_is_no_whole_number_of_words_is_refused(page_bytes: int) -> None:
    """It is said, with the number, before anything is digested."""
    with pytest.raises(LayoutMismatch, match=f"{page_bytes} bytes"):
        page_sums(np.empty((1, page_bytes), dtype=np.uint8))


def test_every_multiplier_is_odd_and_none_comes_twice() -> None:
    """So that a change in one word is always seen, and a swap has a chance to be."""
    table = multipliers(50_000)
    assert (table % 2 == 1).all()
    assert np.unique(table).size == table.size
