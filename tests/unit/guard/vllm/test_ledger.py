"""Serials of vLLM's pool, and the tables of what a step schedules."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from kvfence.guard.vllm.ledger import SWEEP_BLOCKS, Ledger
from kvfence.guard.vllm.prefill import _sent

Tables = dict[str, tuple[list[int], ...]]


@pytest.fixture
def pool(vllm: Any) -> Any:
    """Thirty-two blocks."""
    from vllm.v1.core.block_pool import BlockPool

    return BlockPool(32)


def granted(pool: Any, number: int) -> list[int]:
    """Take blocks."""
    return [block.block_id for block in pool.get_new_blocks(number)]


def free(pool: Any, blocks: list[int]) -> None:
    """Give blocks back."""
    pool.free_blocks([pool.blocks[block] for block in blocks])


def step(ledger: Ledger, tables: Tables) -> list[tuple[str, int]]:
    """Check a step; give what is broken."""
    return [(one.request, one.block) for one in ledger.step(tables, tables.get)]


def test_every_grant_has_a_serial_of_its_own(pool: Any) -> None:
    """The same block granted again is another use."""
    ledger = Ledger(pool)
    first = granted(pool, 2)
    before = ledger.serials(first)
    free(pool, first)
    again = granted(pool, 2)
    assert sorted(again) == sorted(first)
    assert set(ledger.serials(again)).isdisjoint(before)


def test_a_table_whose_block_went_to_another_is_found_in_that_step(pool: Any) -> None:
    """The block was freed under a request that still computes on it, and granted to another."""
    ledger = Ledger(pool)
    mine = granted(pool, 3)
    ledger.extend("a", mine)
    assert step(ledger, {"a": (mine,)}) == []
    free(pool, mine[-1:])
    theirs = granted(pool, 1)
    assert theirs == mine[-1:]
    ledger.extend("b", theirs)
    assert ("a", theirs[0]) in step(ledger, {"a": (mine,), "b": (theirs,)})


def test_a_freed_block_in_a_table_is_found_by_the_sweep(pool: Any) -> None:
    """Nobody has been granted it yet."""
    ledger = Ledger(pool)
    mine = granted(pool, 3)
    ledger.extend("a", mine)
    free(pool, mine[:1])
    assert step(ledger, {"a": (mine,)}) == [("a", mine[0])]


def test_a_block_that_nobody_was_granted_is_found_when_it_comes(pool: Any) -> None:
    """A table is extended by a block that is free."""
    ledger = Ledger(pool)
    assert [one.block for one in ledger.extend("a", [5])] == [5]


def test_a_window_that_moved_on_is_no_fault(pool: Any) -> None:
    """A request whose table names the block no more has nothing to do with its next use."""
    ledger = Ledger(pool)
    mine = granted(pool, 3)
    ledger.extend("a", mine)
    free(pool, mine[:1])
    ledger.extend("b", granted(pool, 1))
    assert step(ledger, {"a": ([0, *mine[1:]],), "b": (mine[:1],)}) == []


def test_a_window_may_get_its_own_block_again(pool: Any) -> None:
    """What a window left behind is free, and may come back to the same request in the same step."""
    ledger = Ledger(pool)
    mine = granted(pool, 3)
    ledger.extend("a", mine)
    assert step(ledger, {"a": (mine,)}) == []
    free(pool, mine[:1])
    again = granted(pool, 1)
    assert again == mine[:1]
    ledger.extend("a", again)
    assert step(ledger, {"a": ([0, *mine[1:], *again],)}) == []


def test_an_ended_request_has_no_table(pool: Any) -> None:
    """Its blocks may go to whoever comes next."""
    ledger = Ledger(pool)
    mine = granted(pool, 3)
    ledger.extend("a", mine)
    free(pool, mine)
    ledger.forget("a")
    theirs = granted(pool, 3)
    ledger.extend("b", theirs)
    assert step(ledger, {"b": (theirs,)}) == []


def test_a_held_block_never_comes_back(pool: Any) -> None:
    """Whoever frees it, one reference is left."""
    ledger = Ledger(pool)
    mine = granted(pool, 2)
    ledger.hold(mine)
    free(pool, mine)
    assert set(mine).isdisjoint(granted(pool, 29))


def test_the_sweep_is_bounded_and_comes_round(pool: Any) -> None:
    """However large the tables are, a step looks at so many blocks beyond what changed."""
    from vllm.v1.core.block_pool import BlockPool

    large = BlockPool(4 * SWEEP_BLOCKS + 1)
    ledger = Ledger(large)
    tables = {str(number): ([*granted(large, SWEEP_BLOCKS)],) for number in range(4)}
    for name, (blocks,) in tables.items():
        ledger.extend(name, blocks)
    step(ledger, {})
    before = ledger.checked
    for _ in range(4):
        assert step(ledger, tables) == []
    assert ledger.checked - before == 4 * SWEEP_BLOCKS


@pytest.mark.parametrize("lengths", [(3 * SWEEP_BLOCKS + 7,), (200, 200), (10, 3 * SWEEP_BLOCKS, 10)])
def test_the_sweep_reaches_every_block_of_every_table(vllm: Any, lengths: tuple[int, ...]) -> None:
    """A block that was given back stands anywhere in tables longer than a step's share: bounded steps find it."""
    from vllm.v1.core.block_pool import BlockPool

    rng, steps_max = random.Random(len(lengths)), 2 * -(-sum(lengths) // SWEEP_BLOCKS)
    for number in range(20):
        large = BlockPool(sum(lengths) + 1)
        ledger, tables = Ledger(large), {str(place): (granted(large, each),) for place, each in enumerate(lengths)}
        for name, (blocks,) in tables.items():
            ledger.extend(name, blocks)
        for _ in range(rng.randrange(5)):
            assert step(ledger, tables) == []
        name, (blocks,) = rng.choice(list(tables.items()))
        lost = rng.choice(blocks)
        free(large, [lost])
        found = [each for _ in range(steps_max) for each in step(ledger, tables)]
        assert (name, lost) in found, number


def test_the_sweep_goes_on_in_a_table_that_is_not_in_every_step(vllm: Any) -> None:
    """A long table that every other step leaves out is seen to its end."""
    from vllm.v1.core.block_pool import BlockPool

    large = BlockPool(4 * SWEEP_BLOCKS + 1)
    ledger, mine = Ledger(large), granted(large, 3 * SWEEP_BLOCKS)
    ledger.extend("long", mine)
    free(large, mine[-1:])
    found = [each for number in range(8) for each in step(ledger, {"long": (mine,)} if number % 2 else {})]
    assert ("long", mine[-1]) in found


@pytest.mark.parametrize("seed", range(5))
def test_honest_traffic_is_never_broken(pool: Any, seed: int) -> None:
    """Requests that come, grow, share, end and come again in any order."""
    rng, ledger, tables = random.Random(seed), Ledger(pool), {}
    table_of: Callable[[str], Any] = lambda name: (tables[name],) if name in tables else None  # noqa: E731
    for number in range(400):
        name = str(rng.randrange(6))
        if name not in tables and len(pool.free) > 4:
            tables[name] = granted(pool, rng.randint(1, 3))
        elif name in tables and rng.random() < 0.3:
            free(pool, tables.pop(name))
            ledger.forget(name)
            continue
        elif name in tables and pool.free:
            tables[name] += granted(pool, 1)
        if name in tables:
            ledger.extend(name, tables[name])
        assert list(ledger.step(tables, table_of)) == [], number


def test_placeholders_before_a_window_are_not_promised(pool: Any) -> None:
    """vLLM sends its null block for what a window has left behind: nobody's bytes, which no decode may read."""
    ledger = Ledger(pool)
    first, second = granted(pool, 2)
    null = next(block.block_id for block in pool.blocks if block.is_null)
    assert _sent({"remote_block_ids": [[first, second], [null, second]]}, ledger) == ((first, second), (second,))
