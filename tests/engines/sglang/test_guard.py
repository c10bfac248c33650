"""SGLang with the guard on both roles: the incident's prompt gets its refusal, and honest traffic is not touched."""

import re
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from pair import Pair, ask
from prompts import OVERSIZE, PATIENT, TENANT

pytestmark = pytest.mark.timeout(2400)

REFUSED_S = 5.0
"""One second on an idle machine; others run here too."""


def decisions(pair: Pair, answer: str) -> int:
    """Count the guard's decisions of one kind over both roles."""
    text = httpx.get(f"{pair.decode}/metrics").text + httpx.get(f"{pair.prefill}/metrics").text
    found = re.findall(rf'^kvfence:guard_decisions_total{{.*answer="{answer}".*}} (\S+)$', text, re.MULTILINE)
    return int(sum(map(float, found)))


def used_tokens(pair: Pair) -> float:
    """Give how much of decode's pool is in use."""
    text = httpx.get(f"{pair.decode}/metrics").text
    return max(
        (float(each) for each in re.findall(r"^sglang:kv_used_tokens{.*} (\S+)$", text, re.MULTILINE)), default=0
    )


def test_an_oversize_prompt_is_refused_at_once_with_the_engines_words(guarded: Pair) -> None:
    """Three times in a row: 400, prefill's own sentence, within seconds, and nothing of a tenant's text."""
    assert ask(guarded, TENANT, 8).status_code == 200
    for _ in range(3):
        started = time.monotonic()
        answer = ask(guarded, OVERSIZE, 48)
        assert answer.status_code == 400, answer.text
        assert "exceeds the maximum allowed length" in answer.text
        assert PATIENT not in answer.text
        assert time.monotonic() - started < REFUSED_S


def test_decodes_pages_come_back_after_a_refusal(guarded: Pair) -> None:
    """What was reserved for a refused prompt is free again: another prompt of that size finds room."""
    ask(guarded, OVERSIZE, 8)
    deadline = time.monotonic() + 30
    while used_tokens(guarded) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert used_tokens(guarded) == 0
    assert ask(guarded, TENANT, 4).status_code == 200


def test_honest_requests_are_verified_and_not_refused(guarded: Pair) -> None:
    """Two dozen prompts, four at once, are all answered; every hand-off was compared, none refused at decode."""
    before = decisions(guarded, "pass")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: ask(guarded, f"Count from {n} to {n + 3}.", 6), range(24)))
    assert [answer.status_code for answer in answers] == [200] * 24
    assert decisions(guarded, "pass") >= before + 24 * 5
    assert decisions(guarded, "refuse") == 0
