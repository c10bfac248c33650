"""Placement: pure, rank-free, and never on a worker that is not healthy."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvfence.core.ids import Incarnation
from kvfence.protocol.routing import Need, WorkerLoad, place

LOADS = st.lists(
    st.builds(
        WorkerLoad,
        incarnation=st.integers(0, 999).map(lambda number: Incarnation(f"{number:032x}")),
        free_pages=st.integers(-20, 20),
        queued_tokens=st.integers(0, 3),
        num_open=st.integers(0, 3),
        healthy=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda load: load.incarnation,
).map(tuple)
NEEDS = st.builds(Need, st.integers(1, 8), st.integers(2, 9))


@given(LOADS, LOADS, NEEDS)
def test_a_pair_is_found_exactly_where_each_role_has_a_healthy_worker(
    prefill: tuple[WorkerLoad, ...], decode: tuple[WorkerLoad, ...], need: Need
) -> None:
    """Full or not, somebody takes it; whoever is not healthy takes nothing."""
    placed = place(prefill, decode, need)
    healthy = [{w.incarnation for w in workers if w.healthy} for workers in (prefill, decode)]
    if placed is None:
        assert not all(healthy)
    else:
        assert placed.prefill in healthy[0]
        assert placed.decode in healthy[1]


@given(LOADS, LOADS, NEEDS, st.randoms(use_true_random=False))
def test_the_order_in_which_workers_are_named_does_not_matter(prefill, decode, need, rng) -> None:
    """No worker is first: the same loads in any order give the same pair."""
    shuffled = [tuple(rng.sample(workers, len(workers))) for workers in (prefill, decode)]
    assert place(*shuffled, need) == place(prefill, decode, need)


@given(LOADS, NEEDS)
def test_most_room_first_then_the_shortest_queue(workers, need) -> None:
    """Nobody who could take the attempt now has more room; where nobody can, nobody has a shorter queue."""
    placed = place(workers, workers, need)
    if placed is None:
        return
    chosen = next(w for w in workers if w.incarnation == placed.decode)
    healthy = [w for w in workers if w.healthy]
    if any(w.free_pages >= need.decode_pages for w in healthy):
        assert chosen.free_pages == max(w.free_pages for w in healthy)
    else:
        assert chosen.queued_tokens == min(w.queued_tokens for w in healthy)


@given(LOADS, NEEDS, st.integers(1, 20))
def test_more_room_never_costs_a_worker_an_attempt(workers, need, more) -> None:
    """A worker that is chosen is chosen still when it alone gets more room."""
    placed = place(workers, workers, need)
    if placed is None:
        return
    with_more = tuple(
        replace(w, free_pages=w.free_pages + more) if w.incarnation == placed.prefill else w for w in workers
    )
    again = place(with_more, workers, need)
    assert again is not None
    assert again.prefill == placed.prefill
