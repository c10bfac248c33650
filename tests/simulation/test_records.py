"""The same runs over records of bytes: real heads, seals, digests and comparisons; messages cross the codec."""

import pytest
from msgspec.structs import replace

from kvfence.protocol.guards import GUARDS, Rules
from kvfence.sim.campaign import world_of
from kvfence.sim.cases import CASES, world_of_case
from kvfence.sim.shrink import finish
from kvfence.sim.world import World


@pytest.mark.parametrize("seed", range(6))
def test_bytes_and_symbols_say_the_same(seed: int) -> None:
    """Under every fault the same steps are taken, the same clients answered, and nothing breaks."""
    drawn = world_of(seed, Rules.all())
    symbols = finish(World(drawn.setup, drawn.waiting))
    records = finish(World(replace(drawn.setup, real=True), drawn.waiting))
    assert records.broken == symbols.broken == {}
    assert records.num_steps == symbols.num_steps
    assert records.answers == symbols.answers
    assert records.decisions == symbols.decisions


BY_BYTES = ("stamp-at-adopt", "stamp-at-read", "digest-matches", "layout-agrees", "zero-tail", "tenant-salt")


@pytest.mark.parametrize("name", BY_BYTES)
def test_the_oracle_finds_in_bytes_what_no_guard_stopped(name: str) -> None:
    """Without a guard, under its fault, foreign bytes are read or sent: told from the bytes alone."""
    case, rules = CASES[name], Rules.without(name, *GUARDS[name].alone)
    for seed in range(case.start, case.start + case.seeds):
        drawn = world_of_case(case, rules, seed)
        if set(finish(World(replace(drawn.setup, real=True), drawn.waiting)).broken) & case.harm:
            return
    raise AssertionError(f"no seed met the fault of {name}")
