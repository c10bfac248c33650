"""vLLM with the guard on both roles: every case ends as a request, decode goes on, honest traffic is not touched."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median
from typing import Any

import cases
import pytest
import traces
from cases import CODE
from conftest import TRACES
from judge import Judge
from pair import Pair, Site, Sizes, complete, handed_off, metric, prefilled, text_of

pytestmark = pytest.mark.timeout(2400)

REFUSED = 500
"""vLLM's default policy: a hand-off that is not taken fails its request."""

HONEST = 200

SAME = 7
"""Of ten answers."""

NEAR = 0.5
"""How far a token's logit lies below the best at most: 0.09 was seen in bfloat16."""


def decisions(url: str, answer: str, **labels: str) -> float:
    """Count a role's decisions of one kind."""
    return metric(url, "kvfence:guard_decisions_total", answer=answer, **labels)


def idle(pair: Pair, blocks: int = Sizes().blocks) -> bool:
    """Is every block of decode's pool free again, soon, but for those in quarantine?"""
    held = metric(pair.decode, "kvfence:guard_quarantined_pages")
    deadline = time.monotonic() + 60

    def used() -> float:
        return metric(pair.decode, "vllm:kv_cache_usage_perc") - held / blocks

    while used() > 0.5 / blocks and time.monotonic() < deadline:
        time.sleep(0.5)
    return used() <= 0.5 / blocks


def refused(pair: Pair, guard: str, case: Callable[[], Any]) -> None:
    """A case is refused by this guard, once; nothing of another tenant is in its answer, and decode goes on."""
    before = decisions(pair.decode, "refuse", guard=guard)
    answer = case()
    assert answer.status_code == REFUSED, answer.text
    assert CODE not in answer.text
    assert cases.alive(pair)
    assert decisions(pair.decode, "refuse", guard=guard) == before + 1
    assert idle(pair)


def test_the_guard_says_that_it_is_on(guarded: Pair) -> None:
    """Both roles, in the same words."""
    for url, role in ((guarded.prefill, "prefill"), (guarded.decode, "decode")):
        assert metric(url, "kvfence:guard_active", role=role, mode="enforce") == 1


def test_honest_hand_offs_are_verified_and_answered_as_alone(guarded: Pair) -> None:
    """They are answered from what prefill computed, after its bytes were compared."""
    assert CODE[:2] in text_of(cases.honest(guarded, "ok"))
    assert decisions(guarded.decode, "pass", guard="digest-matches") == 1
    assert cases.as_alone(guarded, "same") >= SAME


def test_honest_requests_are_not_refused(guarded: Pair, site: Site) -> None:
    """Two hundred, eight at once, of many lengths: all verified, none refused, one in ten judged right."""
    refusals, verified = decisions(guarded.decode, "refuse"), decisions(guarded.decode, "pass", guard="digest-matches")

    def one(number: int) -> Any:
        words = " ".join(f"item {number} {each}" for each in range(4 + number % 23))
        return handed_off(guarded, f"List {number}: {words}. Next:", 6, return_token_ids=True)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(HONEST)))
    assert {answer.status_code for answer in answers} == {200}
    assert decisions(guarded.decode, "refuse") == refusals
    assert decisions(guarded.decode, "pass", guard="digest-matches") == verified + HONEST
    said = [answer.json()["choices"][0] for answer in answers[::10]]
    judge = Judge(site.model)
    assert max(judge.gap(each["prompt_token_ids"], each["token_ids"]) for each in said) < NEAR
    assert median(judge.gap(other["prompt_token_ids"], each["token_ids"]) for each, other in pairwise(said)) > NEAR


@pytest.mark.parametrize(
    ("case", "guard"),
    [
        (cases.short_count, "stamp-at-adopt"),
        (cases.one_block_too_many, "stamp-at-adopt"),
        (cases.one_block_too_few, "stamp-at-adopt"),
        (cases.forged, "stamp-at-adopt"),
        (cases.replayed, "attempt-is-current"),
        (cases.stale, "digest-matches"),
        (cases.written_by_hand, "stamp-at-adopt"),
        (cases.tampered, "stamp-at-adopt"),
    ],
)
def test_a_bad_hand_off_is_refused(guarded: Pair, case: Callable[[Pair, str], Any], guard: str) -> None:
    """Each ends with an error of its own request."""
    refused(guarded, guard, lambda: case(guarded, case.__name__))


def test_a_forged_reference_leaves_the_prefix_cache_clean(guarded: Pair) -> None:
    """A later request which begins alike has nothing of the other's."""
    cases.forged(guarded, "poison")
    assert CODE not in text_of(cases.poisoned(guarded, "poison"))


def test_a_block_out_of_range_is_not_read(guarded: Pair) -> None:
    """What stands outside the seal is not looked at: the hand-off is the sealed one, and good."""
    assert cases.out_of_range(guarded, "range").status_code == 200


def test_an_aborted_receive_leaves_nothing_behind(guarded: Pair) -> None:
    """Clients that leave while blocks travel: every block is free again, and the next are answered."""
    for number in range(6):
        cases.abandoned(guarded, f"abort {number}", 0.02 * (number + 1))
    assert cases.alive(guarded)
    assert idle(guarded)
    assert cases.honest(guarded, "after aborts").status_code == 200


def test_a_restart_of_prefill_between(guarded: Pair) -> None:
    """A hand-off of a former life is an error of its request, and the new life's are taken."""
    prompt = cases.secret("restart")
    params = prefilled(guarded, prompt)
    guarded.restart(prefill=None)
    answer = complete(guarded.decode, prompt, 12, params)
    assert answer.status_code == REFUSED
    assert cases.alive(guarded)
    assert cases.honest(guarded, "after a restart").status_code == 200


def test_the_traces_conform(guarded: Pair) -> None:
    """Of decode, and of both lives of prefill: every step is one that the protocol allows."""
    found = traces.rulings(guarded.held.logs / TRACES)
    assert sorted(found) == [("decode", "conforming"), ("prefill", "conforming"), ("prefill", "conforming")]
