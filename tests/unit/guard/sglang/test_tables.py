"""Pages of a pass against their grants: honest courses are left alone, and every way of sharing a page is found."""

import numpy as np
import pytest

from kvfence.guard.sglang.serials import Serials
from kvfence.guard.sglang.tables import SWEEP_PAGES, Batch, Tables

ROWS, WIDTH, PAGES = 8, 64, 600


class Pool:
    """An allocator and its map, as an engine's: the guard is told of grants and of what is given back."""

    def __init__(self, page_size: int = 1, *, may_change: bool = False) -> None:
        self.page_size = page_size
        self.serials = Serials(PAGES)
        self.slots = np.zeros((ROWS, WIDTH), dtype=np.int32)
        self.tables = Tables(self.serials, self.slots, page_size, may_change=may_change)
        self.free = list(range(1, PAGES))
        self.lengths = dict.fromkeys(range(ROWS), 0)

    def grant(self, row: int, num_tokens: int, pages: list[int] | None = None) -> list[int]:
        """Give a row more slots, from the pool or where a test says."""
        start, end = self.lengths[row], self.lengths[row] + num_tokens
        new = -(-end // self.page_size) - -(-start // self.page_size)
        taken = pages if pages is not None else [self.free.pop(0) for _ in range(new)]
        if taken:
            self.serials.grant(np.array(taken))
        self.write(row, start, end, taken)
        self.lengths[row] = end
        return taken

    def write(self, row: int, start: int, end: int, pages: list[int]) -> None:
        """Write slots into a row, page by page."""
        left = list(pages)
        for at in range(start, end):
            page = left.pop(0) if at % self.page_size == 0 else self.slots[row, at - 1] // self.page_size
            self.slots[row, at] = page * self.page_size + at % self.page_size

    def give_back(self, row: int) -> None:
        """A request is done."""
        used = self.slots[row, : self.lengths[row] : self.page_size] // self.page_size
        self.serials.give_back(used.astype(np.int64))
        self.free += used.tolist()
        self.lengths[row] = 0

    def batch(self, *rows: int, names: str = "") -> Batch:
        """Give a pass over rows."""
        requests = list(names) if names else [f"r{row}" for row in rows]
        return Batch(requests, np.array(rows), np.array([self.lengths[row] for row in rows]))

    def bad(self, *rows: int, names: str = "") -> list[int]:
        """Give which of a pass's rows are refused."""
        return [rows[at] for at in np.flatnonzero(self.tables.look(self.batch(*rows, names=names)).bad)]


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_hundred_thousand_honest_comparisons_refuse_nobody(page_size: int) -> None:
    """Requests come, grow, leave and are followed by others in their rows and pages: no pass is refused."""
    pool, rng = Pool(page_size), np.random.default_rng(page_size)
    names, checked, passes = dict.fromkeys(range(ROWS), 0), 0, 0
    while checked < 100_000:
        for row in range(ROWS):
            if pool.lengths[row] > WIDTH - 2 or (pool.lengths[row] and rng.random() < 0.05):
                if rng.random() < 0.5:
                    pool.tables.drop(row)
                pool.give_back(row)
                names[row] += 1
            if pool.lengths[row] == 0:
                pool.grant(row, int(rng.integers(1, 20)))
            else:
                pool.grant(row, 1)
        batch = Batch(
            [f"{row}:{names[row]}" for row in range(ROWS)], np.arange(ROWS), pool.batch(*range(ROWS)).num_tokens
        )
        looked = pool.tables.look(batch)
        assert not looked.bad.any()
        again = pool.tables.look_again(batch)
        assert again is None
        checked += looked.num_pages
        passes += 1
    assert passes > 100


def test_a_page_that_was_given_to_another_is_found_before_the_next_pass() -> None:
    """Given back under a request that still reads it, and granted anew: its next pass is refused."""
    pool = Pool()
    taken = pool.grant(0, 5)
    assert pool.bad(0) == []
    pool.serials.give_back(np.array([taken[2]]))
    pool.grant(1, 1, [taken[2]])
    assert pool.bad(0, 1) == [0]


def test_a_page_given_back_under_a_pass_is_found_before_its_tokens_leave() -> None:
    """Between a pass's begin and its result its page went back to the pool."""
    pool = Pool()
    taken = pool.grant(0, 5)
    batch = pool.batch(0)
    assert not pool.tables.look(batch).bad.any()
    assert pool.tables.look_again(batch) is None
    pool.serials.give_back(np.array([taken[1]]))
    again = pool.tables.look_again(batch)
    assert again is not None
    assert again.bad.tolist() == [True]


def test_a_page_given_back_is_a_reason_to_look_at_its_own_table_alone() -> None:
    """A request that ends costs those beside it nothing."""
    pool = Pool()
    taken = pool.grant(0, 5)
    pool.grant(1, 5)
    assert pool.bad(0, 1) == []
    pool.serials.give_back(np.array([taken[1]]))
    assert pool.tables.look_again(pool.batch(1)) is None
    again = pool.tables.look_again(pool.batch(0))
    assert again is not None
    assert again.bad.tolist() == [True]


def test_a_page_that_stood_in_several_tables_is_a_reason_to_look_at_all() -> None:
    """Of two tables with a page of the cache the later one has ended: the other is found all the same."""
    pool = Pool()
    taken = pool.grant(0, 3)
    assert pool.bad(0) == []
    pool.write(1, 0, 1, [taken[0]])
    pool.lengths[1] = 1
    assert pool.bad(1) == []
    pool.tables.drop(1)
    pool.serials.give_back(np.array([taken[0]]))
    again = pool.tables.look_again(pool.batch(0))
    assert again is not None
    assert again.bad.tolist() == [True]


@pytest.mark.parametrize("seed", range(4))
def test_whoever_has_lost_a_page_is_looked_at_before_its_tokens_leave(seed: int) -> None:
    """Tables that share pages, end, and lose pages to others, in any order: no loss waits for the sweep."""
    pool, rng = Pool(), np.random.default_rng(seed)
    lost = 0
    for _ in range(300):
        row, other = (int(each) for each in rng.choice(ROWS, 2, replace=False))
        match int(rng.integers(4)):
            case 0 if pool.lengths[row] < WIDTH - 4:
                pool.grant(row, int(rng.integers(1, 4)))
            case 1 if pool.lengths[row] < WIDTH - 4 and pool.lengths[other]:
                shared = pool.slots[other, : pool.lengths[other]]
                pool.write(row, pool.lengths[row], pool.lengths[row] + 1, [int(rng.choice(shared))])
                pool.lengths[row] += 1
            case 2:
                pool.tables.drop(row)
                pool.lengths[row] = 0
            case 3 if pool.lengths[row]:
                page = int(rng.choice(pool.slots[row, : pool.lengths[row]]))
                pool.serials.give_back(np.array([page]))
                losers = [at for at in range(ROWS) if page in pool.slots[at, : pool.lengths[at]]]
                looks = [pool.tables.look_again(pool.batch(at)) for at in losers]
                assert all(look is not None and look.bad.all() for look in looks)
                lost += len(losers)
                for at in losers:
                    pool.tables.drop(at)
                    pool.lengths[at] = 0
            case _:
                continue
        assert pool.bad(*range(ROWS)) == []
    assert lost > 20


def test_a_page_granted_twice_refuses_both_and_never_returns() -> None:
    """An allocator that gives one page to two has no owner for it."""
    pool = Pool()
    taken = pool.grant(0, 3)
    assert pool.bad(0) == []
    assert pool.serials.grant(np.array([taken[1]])) == 1
    pool.write(1, 0, 1, [taken[1]])
    pool.lengths[1] = 1
    assert pool.bad(0, 1) == [0, 1]
    back = pool.serials.give_back(np.array(taken))
    assert back is not None
    assert back.tolist() == [True, False, True]


def test_two_rows_with_one_fresh_page_are_both_refused() -> None:
    """What was granted for this pass stands in one table alone."""
    pool = Pool()
    taken = pool.grant(0, 2)
    pool.write(1, 0, 2, taken)
    pool.lengths[1] = 2
    assert pool.bad(0, 1) == [0, 1]


def test_pages_of_a_request_that_ended_unseen_are_no_reason_to_refuse_the_next() -> None:
    """Its row is in no pass any more, and nobody said that it ended: whoever is granted its pages is left alone."""
    pool = Pool()
    pool.grant(0, 5)
    assert pool.bad(0) == []
    taken = pool.slots[0, :5].tolist()
    pool.give_back(0)
    pool.grant(1, 5, taken)
    assert pool.bad(1) == []


def test_a_page_that_nobody_was_granted_is_refused_at_first_sight() -> None:
    """A table that names a free page is the incident in one pool."""
    pool = Pool()
    pool.grant(0, 2)
    pool.write(0, 2, 3, [550])
    pool.lengths[0] = 3
    assert pool.bad(0) == [0]


def test_a_table_that_was_written_over_is_found_by_the_sweep() -> None:
    """Another's granted page in the middle of a table, with no grant beside it, is found by a round of the sweep."""
    pool = Pool()
    pool.grant(0, 40)
    other = pool.grant(1, 1)
    assert pool.bad(0, 1) == []
    pool.slots[0, 20] = other[0]
    rounds = -(-40 * 2 // SWEEP_PAGES) + 1
    assert any(pool.bad(0, 1) == [0] for _ in range(rounds))


def test_a_table_may_be_given_equal_pages_of_the_cache_where_the_engine_does_that() -> None:
    """Prefill's radix cache replaces a request's own pages by those that it has kept; no refusal if granted."""
    pool = Pool(may_change=True)
    pool.grant(0, 4)
    cached = pool.grant(1, 4)
    assert pool.bad(0, 1) == []
    own = pool.slots[0, :2].copy()
    pool.slots[0, :2] = cached[:2]
    pool.serials.give_back(own.astype(np.int64))
    assert pool.bad(0) == []
    pool.slots[0, 2] = own[0]
    pool.serials.give_back(np.array([cached[3]]))
    assert pool.bad(0) == [0], "what is free is nobody's, whoever wrote it there"


def test_a_row_of_another_request_is_looked_at_anew() -> None:
    """The next request in a row is not measured by what the last one was granted."""
    pool = Pool()
    pool.grant(0, 4)
    assert pool.bad(0, names="a") == []
    pool.give_back(0)
    pool.grant(0, 6)
    assert pool.bad(0, names="b") == []


def test_a_table_that_got_shorter_expects_no_more_than_it_has() -> None:
    """Slots beyond a request's length, given back by speculation, are not its any more."""
    pool = Pool()
    taken = pool.grant(0, 6)
    assert pool.bad(0) == []
    pool.lengths[0] = 3
    assert pool.bad(0) == []
    pool.serials.give_back(np.array(taken[3:]))
    assert pool.bad(0) == []


def test_an_emptied_pool_is_all_free() -> None:
    """After the engine has cleared its pool, a table of before is nobody's."""
    pool = Pool()
    pool.grant(0, 3)
    assert pool.bad(0) == []
    pool.serials.clear()
    assert pool.bad(0) == [0]
