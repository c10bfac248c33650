"""``kvfence serve --engine vllm`` before a guarded pair: two tenants, refusals at the door, clients that leave."""

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cases
import httpx
import pytest
from pair import NAME, Pair, Site, metric, prefilled
from processes import free_ports, processes
from test_guard import decisions, idle

pytestmark = pytest.mark.timeout(1200)

KEYS = {"ada": "a" * 40, "bob": "b" * 40}
"""API keys, by tenant."""

EACH = 6
"""Honest requests of each tenant."""

SETTLE_S = 120

BLOCK = 32
"""Tokens."""


class Door:
    """The gateway, asked as a tenant."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, tenant: str, prompt: Any, max_tokens: int = 8, timeout: float = 600, **more: Any) -> httpx.Response:
        """Ask for a greedy completion."""
        body = {"model": NAME, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
        headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
        return httpx.post(f"{self.url}/v1/completions", json=body, headers=headers, timeout=timeout, trust_env=False)


@contextmanager
def standing(site: Site, logs: Path, prefills: Sequence[str], decodes: Sequence[str]) -> Iterator[Door]:
    """Let a gateway stand before workers, whose URLs these are."""
    keys = logs / "keys"
    keys.write_text("".join(f"{key} {tenant}\n" for tenant, key in KEYS.items()), encoding="ascii")
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "kvfence", "serve", "--engine", "vllm", "--model", str(site.model)]
    command += ["--model-name", NAME, "--port", str(port), "--api-keys", str(keys)]
    for option, urls in (("--prefill", prefills), ("--decode", decodes)):
        command += [part for each in urls for part in (option, each)]
    url = f"http://127.0.0.1:{port}"
    with processes(logs) as held:
        held.start("gateway", command, {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "OMP_NUM_THREADS": "1"})
        held.wait_until_ready([f"{url}/ready"])
        yield Door(url)


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
