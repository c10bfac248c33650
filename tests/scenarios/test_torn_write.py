"""Why the head stands before the bytes: every interleaving of a stray write with a pass that reads the page.

A pass compares, reads the page's body, and compares again. A stray write lands in parts. A leak is a pass that
saw foreign bytes and was told twice that all is right.
"""

from collections.abc import Callable, Iterator
from itertools import combinations, permutations

from kvfence.kv.compare import BatchTable
from kvfence.kv.seal import pack_heads, pack_tags
from kvfence.kv.storage import PoolBuffer
from kvfence.wire.memory import MemoryTransport, PageWrite
from tests.pools import DECODE, LAYOUT, PREFILL, batch_of, body_is, fill, make_pool, tags_of

HEAD, FIRST_HALF, SECOND_HALF, TAIL = range(4)
OURS, THEIRS = 0x11, 0x77
PAGE = 3

Check = Callable[[PoolBuffer, BatchTable], bool]


def torn() -> tuple[PoolBuffer, BatchTable, PageWrite]:
    """Make a decode pool with our sealed page, and another tenant's write to that page that has not landed."""
    prefill, decode = make_pool(), make_pool()
    fill(decode, tags_of(PREFILL, 5, [PAGE]), 4, OURS)
    fill(prefill, tags_of(PREFILL, 2, [0]), 4, THEIRS)
    table = BatchTable(decode)
    table.add("ours", [PAGE], pack_heads(PREFILL, 5, [PAGE]))
    transport = MemoryTransport(memory_of(prefill), memory_of(decode), LAYOUT, DECODE, lambda *_: True)
    (write,) = transport.post(batch_of([0], [PAGE]), body_parts=2)
    return decode, table, write


def memory_of(pool: PoolBuffer) -> bytearray:
    """Give the buffer under a pool."""
    buffer = pool.records.base
    while not isinstance(buffer, bytearray):
        buffer = buffer.obj if isinstance(buffer, memoryview) else buffer.base
    return buffer


def head_is_right(_: PoolBuffer, table: BatchTable) -> bool:
    """Compare the head before the bytes: what every pass does."""
    return len(table.compare()) == 0


def tail_is_right(pool: PoolBuffer, _: BatchTable) -> bool:
    """Compare the stamp behind the bytes only: what our passes do not do."""
    return bool((pool.tails["head"][PAGE] == pack_tags(tags_of(PREFILL, 5, [PAGE]))[0]).all())


def both_are_right(pool: PoolBuffer, table: BatchTable) -> bool:
    """Compare head and tail."""
    return head_is_right(pool, table) and tail_is_right(pool, table)


def interleavings(parts: tuple[int, ...]) -> Iterator[list[int | str]]:
    """Give every merge of the parts, in their order, with the pass's three steps."""
    steps = ["before", "read", "after"]
    total = len(parts) + len(steps)
    for places in combinations(range(total), len(steps)):
        passing, landing = iter(steps), iter(parts)
        yield [next(passing) if place in places else next(landing) for place in range(total)]


def leaks(order: list[int | str], check: Check) -> bool:
    """Run one interleaving; say whether foreign bytes were read and neither comparison told."""
    pool, table, write = torn()
    told = read_foreign = False
    for step in order:
        if isinstance(step, int):
            write.land(step)
        elif step == "read":
            read_foreign = not body_is(pool, PAGE, OURS)
        else:
            told = told or not check(pool, table)
    return read_foreign and not told


def count_leaks(orders: list[tuple[int, ...]], check: Check) -> tuple[int, int]:
    """Count the leaking interleavings of all these landing orders, and all."""
    runs = [leaks(order, check) for parts in orders for order in interleavings(parts)]
    return sum(runs), len(runs)


def test_with_the_head_first_and_bytes_in_order_nothing_leaks() -> None:
    """No interleaving of a torn write gets past a comparison of heads before and after the pass."""
    assert count_leaks([(HEAD, FIRST_HALF, SECOND_HALF)], head_is_right) == (0, 20)


def test_with_the_stamp_only_behind_the_bytes_some_leak() -> None:
    """The head is the guard: with the stamp behind the bytes alone, 7 of 20 interleavings leak."""
    assert count_leaks([(FIRST_HALF, SECOND_HALF, TAIL)], tail_is_right) == (7, 20)


def test_without_the_comparison_after_the_pass_some_leak() -> None:
    """A comparison before the pass alone leaves the time of the pass open."""
    orders = list(interleavings((HEAD, FIRST_HALF, SECOND_HALF)))
    assert any(leaks([step for step in order if step != "after"], head_is_right) for order in orders)


def test_without_order_even_head_and_tail_are_a_probe() -> None:
    """On a transport that lands bytes in any order, comparing head and tail misses 44 of 840: no guarantee."""
    orders = list(permutations((HEAD, FIRST_HALF, SECOND_HALF, TAIL)))
    assert count_leaks(orders, both_are_right) == (44, 840)
