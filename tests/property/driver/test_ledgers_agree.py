"""The two ledgers are one: whatever is asked of them, both answer alike."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kvfence.core.errors import KvfenceError
from kvfence.core.pages import PageState
from kvfence.driver.ledger import Ledger, ListLedger
from kvfence.driver.numpy_ledger import NumpyLedger
from kvfence.protocol.commands import Move
from kvfence.protocol.transitions import PageMove

PAGES = 5

moves = st.builds(
    Move,
    st.sampled_from(PageMove),
    st.integers(0, 6),
    st.lists(st.integers(-1, PAGES), max_size=4).map(tuple),
)
lots = st.lists(
    st.tuples(st.sampled_from(PageState), st.integers(0, 6), st.lists(st.integers(-1, PAGES), max_size=3)), max_size=3
)


def answer(ledger: Ledger, move: Move) -> tuple[str, str] | None:
    """Give the refusal, if there is one."""
    try:
        ledger.apply(move)
    except KvfenceError as error:
        return type(error).__name__, str(error)
    return None


def snapshot(ledger: Ledger) -> list[tuple[PageState, int]]:
    """Give all that a ledger knows."""
    return [(ledger.state(page), ledger.serial(page)) for page in range(PAGES)]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PageState), st.lists(moves, max_size=25), lots)
def test_both_ledgers_answer_alike(
    start: PageState, asked: list[Move], said: list[tuple[PageState, int, list[int]]]
) -> None:
    """Same moves, same refusals word for word, same states, counts and disagreements; a refusal changes nothing."""
    plain, dense = ListLedger(PAGES, start), NumpyLedger(PAGES, start)
    for move in asked:
        before = snapshot(plain)
        refusal = answer(plain, move)
        assert refusal == answer(dense, move)
        assert snapshot(plain) == snapshot(dense)
        assert refusal is None or snapshot(plain) == before
    assert plain.counts() == dense.counts() == {state: plain.count(state) for state in PageState}
    assert plain.disagreements(said) == dense.disagreements(said)
