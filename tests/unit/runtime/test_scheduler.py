"""What goes into the next pass."""

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.runtime.scheduler import next_chunks, next_sequences

GATEWAY = Incarnation("a" * 32)


def attempt(counter: int) -> AttemptId:
    """An attempt of one gateway."""
    return AttemptId(GATEWAY, counter)


def test_the_oldest_prompt_goes_first_and_the_rest_fills_the_pass() -> None:
    """A pass is filled in order of age; only what is left goes to the next prompt."""
    chunks = next_chunks([(attempt(1), 4, 10), (attempt(2), 0, 50)], 16)
    assert [(c.attempt.counter, c.start, c.end, c.last) for c in chunks] == [(1, 4, 10, True), (2, 0, 10, False)]


def test_a_prompt_longer_than_a_pass_is_cut() -> None:
    """A long prompt takes a whole pass and is not its last chunk."""
    (chunk,) = next_chunks([(attempt(1), 0, 100), (attempt(2), 0, 5)], 16)
    assert (chunk.start, chunk.end, chunk.last) == (0, 16, False)


def test_sequences_left_out_of_a_pass_go_first_in_the_next() -> None:
    """No running sequence starves where not all fit one pass."""
    running = [attempt(n) for n in range(5)]
    first = next_sequences(running, (), 3)
    second = next_sequences(running, tuple(first), 3)
    assert set(first) | set(second) == set(running)
    assert second[:2] == running[3:]


def test_all_sequences_go_where_they_fit() -> None:
    """Nothing is left out without need."""
    running = [attempt(n) for n in range(3)]
    assert next_sequences(running, tuple(running), 3) == running
