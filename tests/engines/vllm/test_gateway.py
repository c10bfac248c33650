"""``kvfence serve --engine vllm`` before a guarded pair: two tenants, refusals at the door, clients that leave."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import cases
import httpx
import pytest
from door import KEYS, Door, Front, opened
from pair import NAME, Pair, Site, metric, prefilled
from test_guard import decisions, idle

pytestmark = pytest.mark.timeout(1200)

EACH = 6
"""Honest requests of each tenant."""

SETTLE_S = 120

BLOCK = 32
"""Tokens."""


def standing(site: Site, logs: Path, prefills: Sequence[str], decodes: Sequence[str]) -> AbstractContextManager[Door]:
    """Let a gateway stand before workers, whose URLs these are."""
    return opened(Front("vllm", site.model, NAME, prefills, decodes), logs)


@pytest.fixture(scope="module")
def door(guarded: Pair, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """The gateway before the pair."""
    with standing(site, tmp_path_factory.mktemp("gateway"), [guarded.prefill], [guarded.decode]) as found:
        yield found


def test_two_tenants_are_answered_from_verified_hand_offs(guarded: Pair, door: Door) -> None:
    """Eight at once: every answer is 200, and each brought one hand-off that decode compared."""
    verified = decisions(guarded.decode, "pass", guard="digest-matches")
    refused = decisions(guarded.decode, "refuse")
    asked = [(tenant, f"Note {n} of {tenant}: list river stone cloud.") for n in range(EACH) for tenant in KEYS]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda each: door.ask(*each), asked))
    assert [answer.status_code for answer in answers] == [200] * len(asked)
    assert decisions(guarded.decode, "pass", guard="digest-matches") >= verified + len(asked)
    assert decisions(guarded.decode, "refuse") == refused


def test_a_prompt_is_found_again_by_its_own_tenant_alone(guarded: Pair, door: Door) -> None:
    """Each tenant has a salt of its own: prefill's cache knows a prompt of ada's again for ada, and not for bob."""
    prompt = "A shared beginning: " + "river stone cloud window garden " * 20
    name = "vllm:prefix_cache_hits_total"

    def found(tenant: str) -> float:
        before = metric(guarded.prefill, name)
        door.ask(tenant, prompt).raise_for_status()
        return metric(guarded.prefill, name) - before

    assert [found(tenant) for tenant in ("ada", "bob")] == [0, 0]
    assert found("ada") >= BLOCK


def test_a_prompt_over_the_context_is_refused_at_the_door(guarded: Pair, door: Door) -> None:
    """400 with the sums, and no worker hears of it."""
    name = "vllm:prompt_tokens_total"
    before = (metric(guarded.prefill, name), metric(guarded.decode, name))
    answer = door.ask("ada", [100] * 2100)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    after = (metric(guarded.prefill, name), metric(guarded.decode, name))
    assert sum(after) - sum(before) < 2000


def test_a_clients_transfer_parameters_are_not_forwarded(guarded: Pair, door: Door) -> None:
    """A real hand-off of another tenant's secret beside an own prompt: the answer is the own prompt's."""
    victim, own = cases.forged_prompt(guarded, "door")
    stolen = prefilled(guarded, victim)
    refused = decisions(guarded.decode, "refuse")
    answer = door.ask("bob", own, 12, kv_transfer_params=stolen)
    assert answer.status_code == 200
    assert cases.CODE not in answer.text
    assert decisions(guarded.decode, "refuse") == refused


def test_a_client_that_leaves_leaves_nothing_behind(guarded: Pair, door: Door) -> None:
    """Before and after the first token: decode stops, and every block is free again."""
    for number in range(4):
        with pytest.raises(httpx.TimeoutException):
            door.ask("ada", f"Leaving {number}: " + "once upon a time " * 30, 400, timeout=0.2 + 0.6 * number)
    deadline = time.monotonic() + SETTLE_S
    while metric(guarded.decode, "vllm:num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.5)
    assert metric(guarded.decode, "vllm:num_requests_running") == 0
    assert idle(guarded)
    assert door.ask("ada", "After those who left:").status_code == 200
