"""A pair that observes, and then its roles changed over one by one, as an operator would."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import cases
import pytest
import traces
from cases import CODE
from conftest import TRACES, fenced
from pair import Pair, Site, metric, text_of
from test_guard import SAME, decisions, refused

from kvfence.core.ids import Incarnation
from kvfence.driver.watch import Watch, watching
from kvfence.trace.reader import TraceReader

pytestmark = pytest.mark.timeout(2400)

READ = "vllm:nixl_bytes_transferred_sum"
UNVERIFIED = "adopted-is-verified"


def broken(pair: Pair) -> Counter[str]:
    """Count, from decode's trace so far, how often each property was broken; replay names the first time alone."""
    (path,) = (pair.held.logs / TRACES).glob("decode-*.ndjson")
    reader = TraceReader(path)
    header = reader.header
    life, layout, unseen = Incarnation(header.incarnation), header.node.layout, frozenset(header.unseen)
    watch = Watch(watching(enforced=False), "decode", life, layout, unseen)
    events: Any = (line.event for line in reader.steps())
    return Counter(name for event in events for name in watch.see(event).broken)


def test_honest_hand_offs_are_answered_and_their_traces_conform(observing: Pair) -> None:
    """All are verified, and nothing would have been refused."""
    assert cases.as_alone(observing, "observed") >= SAME
    assert decisions(observing.decode, "pass", guard="digest-matches") == 10
    assert decisions(observing.decode, "observed") == 0
    assert sorted(traces.rulings(observing.held.logs / TRACES)) == [
        ("decode", "conforming"),
        ("prefill", "conforming"),
    ]


@pytest.mark.parametrize(
    ("case", "guard"),
    [
        (cases.short_count, "stamp-at-adopt"),
        (cases.one_block_too_many, "stamp-at-adopt"),
        (cases.forged, "stamp-at-adopt"),
        (cases.tampered, "stamp-at-adopt"),
        (cases.replayed, "attempt-is-current"),
        (cases.stale, "digest-matches"),
    ],
)
def test_an_attack_is_answered_as_shipped_and_stands_in_the_trace(
    observing: Pair, case: Callable[[Pair, str], Any], guard: str
) -> None:
    """200; the guard that would have refused it is counted once, and the trace breaks the law once more."""
    counted, law = decisions(observing.decode, "observed", guard=guard), broken(observing)
    answer = case(observing, f"observed {case.__name__}")
    assert answer.status_code == 200, answer.text
    assert decisions(observing.decode, "observed", guard=guard) == counted + 1
    assert broken(observing) - law == Counter({UNVERIFIED: 1})
    if case is cases.forged:
        assert CODE in text_of(answer)


def test_replay_rejects_the_trace_of_decode_and_names_what_broke(observing: Pair) -> None:
    """Prefill did nothing wrong."""
    found = {trace["role"]: trace for trace in traces.replayed(observing.held.logs / TRACES)}
    assert found["prefill"]["verdict"] == "conforming"
    assert found["decode"]["verdict"] == "property violated"
    assert set(found["decode"]["violated"]) == {UNVERIFIED}


def test_a_decode_as_shipped_reads_what_an_observing_prefill_sends(observing: Pair, site: Site) -> None:
    """The first step of a change: prefill observes, and nothing is different at decode."""
    observing.restart(decode=site)
    assert cases.as_alone(observing, "first step") >= SAME
    assert metric(observing.decode, READ) > 0


def test_a_decode_that_enforces_beside_an_observing_prefill(observing: Pair, site: Site, key: str) -> None:
    """The step after: honest hand-offs are verified, bad ones refused."""
    observing.restart(decode=fenced(site, "enforce", key, observing.held.logs))
    assert CODE[:2] in text_of(cases.honest(observing, "canary"))
    assert decisions(observing.decode, "pass", guard="digest-matches") == 1
    refused(observing, "stamp-at-adopt", lambda: cases.forged(observing, "canary"))


def test_another_key_is_no_promise(observing: Pair, site: Site) -> None:
    """What was sealed with another secret is refused as if nobody had promised it."""
    observing.restart(decode=fenced(site, "enforce", "another secret " * 3, observing.held.logs))
    refused(observing, "stamp-at-adopt", lambda: cases.honest(observing, "another key"))


def test_a_prefill_as_shipped_is_not_read(observing: Pair, site: Site) -> None:
    """A mixed pair the wrong way round: nothing was promised."""
    observing.restart(prefill=site)
    refused(observing, "stamp-at-adopt", lambda: cases.honest(observing, "no guard"))


def test_a_decode_as_shipped_finds_nothing_to_read_of_a_prefill_that_enforces(
    observing: Pair, site: Site, key: str
) -> None:
    """It computes the prompt itself: a right answer, and no byte was read."""
    observing.restart(prefill=fenced(site, "enforce", key, observing.held.logs), decode=site)
    assert CODE[:2] in text_of(cases.honest(observing, "sealed"))
    assert metric(observing.decode, READ) == 0
