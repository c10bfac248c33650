"""SGLang with the guard on both roles: what is refused, what is not, and that pages come back after all of it.

One pair for all cases, in this order: whatever one does, the next must find the pair as it was.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from pair import Pair, ask, ask_both
from prompts import OVERSIZE, PATIENT, TENANT
from seen import REFUSED_S, Cut, checked, decisions, held, rulings, total, until

pytestmark = pytest.mark.timeout(2400)

BACK_S = 30.0
"""In which pages come back; a quarantine may have to wait for a new session."""

STOPPED_S = 75.0
"""Longer than the engine's own time-outs in these pairs, and than its deferred release."""

CHECKS = int(os.environ.get("SGLANG_PAGE_CHECKS", "0"))
"""How many comparisons of pages the honest traffic is to cause."""

SHORT = {"text": "Count to three.", "sampling_params": {"temperature": 0, "max_new_tokens": 4}}


@pytest.fixture(autouse=True)
def pages_come_back(guarded: Pair, request: pytest.FixtureRequest) -> Iterator[None]:
    """After every case decode holds nothing and serves, where there is a prefill still.

    SGLang's own check when idle ends a decode whose pool is not whole, so that who serves has lost none.
    """
    yield
    assert until(lambda: held(guarded) == 0, BACK_S), "pages are still in quarantine"
    if "killed" in request.node.name:
        return
    answer = ask(guarded, "Good morning.", 2)
    assert answer.status_code == 200, answer.text


def test_from_outside_both_roles_are_seen_to_enforce(guarded: Pair) -> None:
    """``kvfence guard check`` finds nothing amiss."""
    assert checked(guarded) == 0


@pytest.mark.parametrize("alignment", ["aligned", "unaligned"])
def test_an_oversize_prompt_is_refused_at_once_with_the_engines_words(guarded: Pair, alignment: str) -> None:
    """The incident, and with slots that are not the tenant's own: 400, prefill's sentence, nothing of the tenant's."""
    if alignment == "unaligned":
        ask(guarded, "Good morning.", 3)
    assert ask(guarded, TENANT, 8).status_code == 200
    times = []
    for _ in range(3):
        started = time.monotonic()
        answer = ask(guarded, OVERSIZE, 48)
        times.append(round(time.monotonic() - started, 2))
        assert answer.status_code == 400, answer.text
        assert "exceeds the maximum allowed length" in answer.text
        assert PATIENT not in answer.text
    sys.stdout.write(f"refused after {times} s\n")
    assert min(times) < REFUSED_S


def test_honest_traffic_is_verified_and_not_refused(guarded: Pair) -> None:
    """Prompts of many lengths, four at once, some of them aborted: every answer comes, none is refused."""
    passed, refused = decisions(guarded, "pass"), refusals(guarded)
    asked = 0

    def one(number: int) -> int:
        try:
            words = " ".join(f"word{number}x{at}" for at in range(1 + number * 7 % 90))
            return ask(
                guarded, f"Repeat: {words}", 6 + number % 10, timeout_s=0.4 if number % 9 == 8 else 600
            ).status_code
        except httpx.TimeoutException:
            return 0

    while True:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(one, range(asked, asked + 24)))
        asked += 24
        assert set(answers) <= {0, 200}
        checked = sum(total(url, "kvfence:guard_pages_checked_total") for url in (guarded.prefill, guarded.decode))
        if checked >= CHECKS:
            break
    sys.stdout.write(f"{asked} requests, {int(checked)} pages checked\n")
    assert decisions(guarded, "pass") > passed
    assert refusals(guarded) == refused


def test_a_refusal_that_prefill_alone_makes_reaches_decodes_client(guarded: Pair) -> None:
    """Decode would take the request; prefill's refusal and its words are what its client gets."""
    room = 2_000_000 + int(time.time())
    answers = ask_both(guarded, room, {**SHORT, "session_params": {"id": "nobody"}}, SHORT)
    assert all(answer.status_code >= 400 for answer in answers), [answer.text for answer in answers]


def test_a_request_that_is_from_nobody_is_refused(guarded: Pair) -> None:
    """A client may name the engine's own stand-in for prefill: decode would answer from pages that nobody writes."""
    body = {**SHORT, "text": "Count to three. " * 20, "bootstrap_host": "2.2.2.2", "bootstrap_room": int(time.time())}
    answer = httpx.post(f"{guarded.decode}/generate", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 400, answer.text
    assert "names no prefill" in answer.text


def test_a_shortened_prompt_is_refused(guarded: Pair) -> None:
    """Prefill has fewer tokens than decode reserved: no token leaves, and its client is told."""
    before = decisions(guarded, "refuse", guard="count-matches")
    longer = {**SHORT, "text": "Count to three. " * 20}
    _, answer = ask_both(guarded, 3_000_000 + int(time.time()), SHORT, longer)
    assert answer.status_code >= 500, answer.text
    assert "decode reserved" in answer.text
    assert decisions(guarded, "refuse", guard="count-matches") == before + 1


def test_clients_that_leave_in_the_middle_cost_no_pages(guarded: Pair) -> None:
    """Long prompts whose clients go away after a moment, at the door, in a transfer, in decode."""
    for at in range(8):
        try:
            ask(guarded, TENANT, 40, timeout_s=0.2 + 0.35 * at)
        except httpx.TimeoutException:
            continue
    assert httpx.get(f"{guarded.decode}/health", timeout=60, trust_env=False).status_code == 200


def test_a_prefill_that_stops_past_every_time_out_gets_nothing_back_by_a_clock(guarded: Pair) -> None:
    """Stopped in mid-request, longer than SGLang waits: pages are held until a new session, and the pair serves on."""
    rebuilt = total(guarded.decode, "kvfence:guard_sessions_rebuilt_total")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, guarded, TENANT, 8, STOPPED_S)
        stopped = threading.Timer(0.6, lambda: signal_all(guarded, "prefill", signal.SIGSTOP))
        stopped.start()
        try:
            seen = until(lambda: held(guarded) > 0, STOPPED_S)
            fenced = until(lambda: total(guarded.decode, "kvfence:guard_sessions_rebuilt_total") > rebuilt, BACK_S)
            asked.exception(STOPPED_S + 30)
        finally:
            stopped.join()
            signal_all(guarded, "prefill", signal.SIGCONT)
    assert (seen, fenced) == (True, True)
    assert until(lambda: ask(guarded, "Good morning.", 2).status_code == 200, 120)


def test_a_room_used_twice_hands_off_two_attempts(guarded: Pair) -> None:
    """One after the other in one room: the second is not taken for the first."""
    room = 4_000_000 + int(time.time())
    for _ in range(2):
        assert [answer.status_code for answer in ask_both(guarded, room, SHORT, SHORT)] == [200, 200]


@pytest.mark.parametrize(
    "wrong",
    [
        {"sampling_params": {"regex": "([", "max_new_tokens": 4}},
        {"sampling_params": {"json_schema": '{"type": "nothing"}', "max_new_tokens": 4}},
        {"session_params": {"id": "nobody"}},
        {"return_logprob": True, "logprob_start_len": 100_000},
    ],
    ids=["grammar", "schema", "session", "logprobs"],
)
def test_every_kind_of_refusal_is_told_to_both_clients(guarded: Pair, wrong: dict[str, object]) -> None:
    """Whatever refuses a request at prefill, neither role answers it with text, and neither waits for a time-out."""
    started = time.monotonic()
    answers = ask_both(guarded, 1_000_000 + int(time.time()), {**SHORT, **wrong}, {**SHORT, **wrong})
    statuses = [answer.status_code for answer in answers]
    sys.stdout.write(f"{statuses} after {time.monotonic() - started:.1f} s\n")
    assert all(answer.status_code >= 400 for answer in answers), [answer.text for answer in answers]
    assert time.monotonic() - started < 10 * REFUSED_S


def test_a_room_used_at_once_by_two_serves_at_most_each_its_own(guarded: Pair) -> None:
    """Two at once in one room, with other prompts: who is answered is answered about his own."""
    room = 5_000_000 + int(time.time())
    other = {**SHORT, "text": "Name the days of the week."}
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda body: ask_both(guarded, room, body, body), (SHORT, other)))
    alone = [ask_both(guarded, room + 1 + at, body, body)[1].json()["text"] for at, body in enumerate((SHORT, other))]
    for (_, answer), expected in zip(both, alone, strict=True):
        assert answer.status_code != 200 or answer.json()["text"] == expected


def test_a_room_that_is_open_takes_nobody_else(guarded: Pair) -> None:
    """Another comes while the first's pages wait to be written, which as shipped ends 0.5.19's schedulers."""
    room = 6_000_000 + int(time.time())
    cut = Cut(guarded)
    with ThreadPoolExecutor(1) as pool:
        first = {**SHORT, "text": f"Room. {TENANT}"}
        asked = pool.submit(ask_both, guarded, room, first, first)
        assert until(cut.has_reserved, BACK_S)
        assert all(answer.status_code >= 400 for answer in ask_both(guarded, room, SHORT, SHORT))
        assert [answer.status_code for answer in asked.result()] == [200, 200]


def test_the_traces_of_all_this_conform(guarded: Pair) -> None:
    """What both roles wrote down of the cases above is what the protocol allows."""
    assert rulings(guarded) == {"prefill": "conforming", "decode": "conforming"}


def test_a_prefill_that_is_killed_in_a_transfer_leaves_no_page_behind(guarded: Pair) -> None:
    """Nobody is left to say that the write has ended, so that decode makes its session new."""
    rebuilt = total(guarded.decode, "kvfence:guard_sessions_rebuilt_total")
    killed = threading.Timer(0.6, lambda: signal_all(guarded, "prefill", signal.SIGKILL))
    killed.start()
    try:
        answer = ask(guarded, TENANT, 8, timeout_s=180)
        assert answer.status_code != 200
    except httpx.HTTPError:
        pass
    killed.join()
    gone = until(lambda: total(guarded.decode, "kvfence:guard_sessions_rebuilt_total") > rebuilt, 2 * BACK_S)
    sys.stdout.write(f"session rebuilt: {gone}, {held(guarded)} pages held\n")
    assert httpx.get(f"{guarded.decode}/server_info", timeout=60, trust_env=False).status_code == 200


def test_a_prefill_that_comes_back_is_handed_off_by_again(guarded: Pair) -> None:
    """The last case: its successor at the same address is another life; honest requests are verified as before."""
    guarded.restart("prefill")
    assert until(lambda: ask(guarded, "Good morning.", 2).status_code == 200, 180)
    passed, refused = decisions(guarded, "pass"), refusals(guarded)
    assert [ask(guarded, f"Count to {number}.", 4).status_code for number in range(3, 9)] == [200] * 6
    assert decisions(guarded, "pass") > passed
    assert refusals(guarded) == refused


def refusals(pair: Pair) -> int:
    """Count what was refused, but for what clients had given up themselves."""
    return decisions(pair, "refuse") - decisions(pair, "refuse", guard="tombstone")


def signal_all(pair: Pair, role: str, which: signal.Signals) -> None:
    """Send a signal to every process of a role."""
    group = pair.groups[role]
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group:
                process.send_signal(which)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
