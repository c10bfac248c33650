"""The index finds what was added, under the salt it was added with, and nothing that is gone."""

from kvfence.driver.prefix import PrefixIndex

BLOCKS = [b"one", b"two", b"three", b"four"]


def test_a_prefix_is_found_lot_by_lot_up_to_the_first_gap() -> None:
    """Each lot is named with how many of its first pages go on where the lot before ends."""
    index = PrefixIndex()
    keys = index.keys("salt", BLOCKS)
    index.add(3, keys[:2])
    index.add(5, keys[2:3])
    assert index.find(keys) == ((3, 2), (5, 1))
    assert index.find(index.keys("salt", [*BLOCKS[:1], b"other", *BLOCKS[2:]])) == ((3, 1),)
    assert index.find(index.keys("salt", BLOCKS[1:])) == ()


def test_no_key_is_equal_under_two_salts_or_secrets() -> None:
    """Equal blocks of two tenants, and of two lives of one worker, have no key in common."""
    index = PrefixIndex()
    ours, theirs = index.keys("a", BLOCKS), index.keys("b", BLOCKS)
    later = PrefixIndex().keys("a", BLOCKS)
    assert len({*ours, *theirs, *later}) == 3 * len(BLOCKS)


def test_what_is_released_is_not_found() -> None:
    """The last pages of a lot go first; a serial that was never added is nothing."""
    index = PrefixIndex()
    keys = index.keys("salt", BLOCKS)
    index.add(3, keys)
    assert index.forget(3, 1) == 1
    assert index.find(keys) == ((3, 3),)
    assert index.forget(9, 4) == 0
    assert index.forget(3, 7) == 3
    assert index.find(keys) == ()
    assert len(index) == 0


def test_pages_known_elsewhere_are_counted_from_the_first() -> None:
    """A lot's own pages are not known elsewhere; a page added again is found in the later lot."""
    index = PrefixIndex()
    keys = index.keys("salt", BLOCKS)
    index.add(3, keys[:3])
    assert index.num_known(keys, 4) == 3
    assert index.num_known(keys, 3) == 0
    index.add(4, keys[:1])
    assert index.find(keys) == ((4, 1),)
    assert index.forget(3, 3) == 2
