"""``kvfence serve --engine sglang`` before a guarded pair: two tenants, refusals at the door and of prefill's own."""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from door import KEYS, Door, Front, opened
from misstated import misstating
from pair import NAME, Pair, Site
from seen import REFUSED_S, decisions, held, limits_of, total, until

pytestmark = pytest.mark.timeout(1200)

EACH = 6
"""Honest requests of each tenant."""

SETTLE_S = 120

TOO_LONG = [100] * 1024
"""The incident's: more than prefill takes, less than decode does."""


@pytest.fixture(scope="module")
def door(guarded: Pair, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """The gateway before the pair."""
    front = Front("sglang", site.model, NAME, [guarded.prefill], [guarded.decode])
    with opened(front, tmp_path_factory.mktemp("gateway")) as door:
        yield door


def test_two_tenants_are_answered_from_verified_hand_offs(guarded: Pair, door: Door) -> None:
    """Eight at once: every answer is 200, and each brought one hand-off that decode compared."""
    verified, refused = decisions(guarded, "pass", guard="digest-matches"), decisions(guarded, "refuse")
    asked = [(tenant, f"Note {n} of {tenant}: list river stone cloud.") for n in range(EACH) for tenant in KEYS]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda each: door.ask(*each), asked))
    assert [answer.status_code for answer in answers] == [200] * len(asked)
    assert decisions(guarded, "pass", guard="digest-matches") >= verified + len(asked)
    assert decisions(guarded, "refuse") == refused


def test_a_prompt_over_prefills_limit_is_refused_at_the_door(guarded: Pair, door: Door) -> None:
    """400 with the sums, and no worker hears of it."""
    before = decisions(guarded, "refuse")
    answer = door.ask("ada", TOO_LONG)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert decisions(guarded, "refuse") == before


def test_prefills_own_refusal_is_the_clients_answer_at_once(
    guarded: Pair, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A gateway that was told of larger limits lets the prompt through; the guarded pair's 400 comes with its words."""
    with misstating(guarded.prefill, limits_of(guarded.decode)) as prefill:
        front = Front("sglang", site.model, NAME, [prefill.url], [guarded.decode])
        with opened(front, tmp_path_factory.mktemp("misstated")) as door:
            times = []
            for _ in range(3):
                began = time.monotonic()
                answer = door.ask("ada", TOO_LONG)
                times.append(round(time.monotonic() - began, 2))
                assert answer.status_code == 400, answer.text
                assert "exceeds the maximum allowed length" in answer.text
            sys.stdout.write(f"refused after {times} s\n")
            assert min(times) < REFUSED_S
            assert until(lambda: held(guarded) == 0, SETTLE_S)
            assert door.ask("ada", "After the refusal:").status_code == 200


def test_a_client_that_leaves_leaves_nothing_behind(guarded: Pair, door: Door) -> None:
    """Before and after the first token: decode stops, and every page comes back."""
    for number in range(4):
        with pytest.raises(httpx.TimeoutException):
            door.ask("ada", f"Leaving {number}: " + "once upon a time " * 30, 400, timeout=0.2 + 0.6 * number)
    assert until(lambda: total(guarded.decode, "sglang:num_running_reqs") == 0, SETTLE_S)
    assert until(lambda: held(guarded) == 0, SETTLE_S)
    assert door.ask("ada", "After those who left:").status_code == 200
