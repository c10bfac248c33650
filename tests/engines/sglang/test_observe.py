"""A pair that observes: it answers as before, and its traces tell what happened.

Each attack's part of the traces is replayed alone (``seen.Cut``), so that what is said is said of that attack.
"""

import secrets
import sys
from collections.abc import Callable

import httpx
import pytest
from conftest import RELEASE
from pair import OFF, Pair, ask, ask_both
from prompts import OVERSIZE, TENANT
from seen import Cut, Found, checked, decisions, rulings, tampering, until

pytestmark = pytest.mark.timeout(2400)

REST_S = 90.0
"""In which what was reserved goes back; the engine's own time-outs are a minute here."""

VIOLATED = "property violated"

SHORT = {"text": "Count to three.", "sampling_params": {"temperature": 0, "max_new_tokens": 4}}


def during(pair: Pair, attack: Callable[[], object]) -> dict[str, Found]:
    """Give what replay says of what the pair wrote down during an attack, once nothing of it is open."""
    cut = Cut(pair)
    attack()
    until(cut.is_at_rest, REST_S)
    found = cut.replayed()
    sys.stdout.write("".join(f"{role}: {one}\n" for role, one in found.items()))
    return found


def test_honest_requests_are_answered_and_their_traces_conform(observing: Pair) -> None:
    """Nothing of the engine's is changed, and nothing would have been refused."""
    assert [ask(observing, f"Count to {number}.", 4).status_code for number in (3, 4, 5)] == [200] * 3
    assert decisions(observing, "observed") == 0
    assert rulings(observing) == {"prefill": "conforming", "decode": "conforming"}


def test_from_outside_it_is_seen_that_nothing_is_refused(observing: Pair) -> None:
    """``kvfence guard check`` does not take a pair that observes for one that is guarded."""
    assert checked(observing) == 1


@pytest.mark.skipif(RELEASE != "0.5.19", reason="later releases refuse at prefill")
def test_the_incident_happens_and_its_trace_is_rejected(observing: Pair) -> None:
    """Observed is not refused: the client has its 200, and replay says which property broke, at both roles."""
    ask(observing, TENANT, 8)
    statuses: list[int] = []
    found = during(observing, lambda: statuses.append(ask(observing, OVERSIZE, 8).status_code))
    assert statuses == [200]
    assert (found["prefill"].verdict, found["decode"].verdict) == (VIOLATED, VIOLATED)
    assert "refused-is-not-run" in found["prefill"].broken
    assert "adopted-is-verified" in found["decode"].broken
    assert "count-matches" in found["decode"].observed


@pytest.mark.parametrize(
    ("word", "guard", "at_prefill"),
    [
        ("silence", "stamp-at-adopt", set()),
        ("former", "attempt-is-current", {"promised-is-sent"}),
        ("layout", "layout-agrees", set()),
        ("count", "count-matches", {"promised-is-sent"}),
        ("bytes", "digest-matches", set()),
    ],
)
def test_what_is_not_as_promised_is_adopted_and_its_trace_is_rejected(
    observing: Pair, word: str, guard: str, at_prefill: set[str]
) -> None:
    """No promise, one of a former attempt, another layout or count, bytes that changed: each by its guard."""
    with tampering(observing, word):
        found = during(observing, lambda: ask(observing, f"Say {word} twice.", 4).raise_for_status())
    assert found["decode"].verdict == VIOLATED
    assert "adopted-is-verified" in found["decode"].broken
    assert guard in found["decode"].observed
    assert found["prefill"].broken == at_prefill


def test_between_attacks_honest_traces_conform(observing: Pair) -> None:
    """What is rejected is the attack, and not the cut."""
    found = during(observing, lambda: ask(observing, "Count to six.", 4).raise_for_status())
    assert {role: one.verdict for role, one in found.items()} == {"prefill": "conforming", "decode": "conforming"}


def test_a_refused_request_that_enters_the_queue_is_told_of(observing: Pair) -> None:
    """A broken grammar is refused by the engine, which queues it all the same; from 0.5.21 on it keeps it out."""
    wrong = {**SHORT, "sampling_params": {"regex": "([", "max_new_tokens": 4}}
    cut = during(observing, lambda: ask_both(observing, secrets.randbits(40), wrong, wrong))
    entered = RELEASE in ("0.5.19", "0.5.20")
    assert {"refused-is-not-run" in found.broken for found in cut.values()} <= {entered}
    assert any("refusal-is-final" in found.observed for found in cut.values()) == entered


def test_pages_that_go_back_while_prefill_may_write_there_are_told_of(observing: Pair) -> None:
    """Clients that leave in a transfer: the engine's own word for that is not prefill's that its writes have ended."""

    def leave() -> None:
        for at in range(8):
            try:
                ask(observing, f"File {at}. {TENANT}", 40, timeout_s=0.3 + 0.2 * at)
            except httpx.TimeoutException:
                continue

    found = during(observing, leave)["decode"]
    assert found.verdict == VIOLATED
    assert "no-timer-frees" in found.broken
    assert "drain-or-fence" in found.observed


def test_a_prefill_with_another_key_promises_nothing_that_is_heard(observing: Pair) -> None:
    """Neither role takes the other's word, and both traces say that pages went where nobody had asked for them."""
    observing.restart("prefill", {**observing.guard, "KVFENCE_GUARD_KEY": secrets.token_hex(32)})
    assert until(lambda: ask(observing, "Good morning.", 2).status_code == 200, 180)
    found = during(observing, lambda: ask(observing, "Count to seven.", 4).raise_for_status())
    assert "sent-is-asked" in found["prefill"].broken
    assert "adopted-is-verified" in found["decode"].broken
    assert "stamp-at-adopt" in found["decode"].observed


def test_beside_a_prefill_without_the_guard_decode_answers_as_before(observing: Pair) -> None:
    """Roles are changed over one by one: nothing was promised of these pages, which is counted and no more."""
    observing.restart("prefill", OFF)
    before = decisions(observing, "observed")
    assert until(lambda: ask(observing, "Good morning.", 2).status_code == 200, 180)
    assert [ask(observing, f"Count to {number}.", 4).status_code for number in (3, 4, 5)] == [200] * 3
    assert decisions(observing, "observed") > before
