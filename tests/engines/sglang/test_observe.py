"""A decode that observes beside an unguarded prefill: it answers as before, and its trace tells what happened."""

import pytest
from conftest import RELEASE
from pair import Pair, ask
from prompts import OVERSIZE, TENANT
from seen import decisions, rulings

pytestmark = pytest.mark.timeout(2400)


def test_honest_requests_are_answered(observing: Pair) -> None:
    """Nothing of the engine's is changed, whoever the peer is."""
    assert [ask(observing, f"Count to {number}.", 4).status_code for number in (3, 4, 5)] == [200] * 3


@pytest.mark.skipif(RELEASE != "0.5.19", reason="later releases refuse at prefill")
def test_the_incident_happens_and_its_trace_is_rejected(observing: Pair) -> None:
    """Observed is not refused: the client has its 200, and replay says which property broke."""
    ask(observing, TENANT, 8)
    assert ask(observing, OVERSIZE, 8).status_code == 200
    assert decisions(observing, "observed") > 0
    assert rulings(observing)["decode"] == "property violated"
