"""A pair that observes: it answers as before, and its traces tell what happened."""

import pytest
from conftest import RELEASE
from pair import OFF, Pair, ask
from prompts import OVERSIZE, TENANT
from seen import decisions, rulings, until

pytestmark = pytest.mark.timeout(2400)


def test_honest_requests_are_answered_and_their_traces_conform(observing: Pair) -> None:
    """Nothing of the engine's is changed, and nothing would have been refused."""
    assert [ask(observing, f"Count to {number}.", 4).status_code for number in (3, 4, 5)] == [200] * 3
    assert decisions(observing, "observed") == 0
    assert rulings(observing) == {"prefill": "conforming", "decode": "conforming"}


@pytest.mark.skipif(RELEASE != "0.5.19", reason="later releases refuse at prefill")
def test_the_incident_happens_and_its_trace_is_rejected(observing: Pair) -> None:
    """Observed is not refused: the client has its 200, and replay says which property broke."""
    ask(observing, TENANT, 8)
    assert ask(observing, OVERSIZE, 8).status_code == 200
    assert decisions(observing, "observed") > 0
    assert rulings(observing)["decode"] == "property violated"


def test_beside_a_prefill_without_the_guard_decode_answers_as_before(observing: Pair) -> None:
    """Roles are changed over one by one: nothing was promised of these pages, which is counted and no more."""
    observing.restart("prefill", OFF)
    before = decisions(observing, "observed")
    assert until(lambda: ask(observing, "Good morning.", 2).status_code == 200, 180)
    assert [ask(observing, f"Count to {number}.", 4).status_code for number in (3, 4, 5)] == [200] * 3
    assert decisions(observing, "observed") > before
