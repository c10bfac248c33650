"""The incident from the protocol alone: 27 prompts that do not fit prefill's pool."""

import pytest

from kvfence.core.ids import RequestId, TenantId
from kvfence.driver.mutants import INCIDENT_LACKS, placeholder_on_refusal
from kvfence.protocol.admission import Capacity
from kvfence.protocol.guards import Rules
from kvfence.protocol.messages import EndReason
from kvfence.sim.process import Setup
from kvfence.sim.workload import SimRequest
from kvfence.sim.world import World

UNGUARDED = Rules.without(*INCIDENT_LACKS)
OVERSIZE = 27


def play(rules: Rules, prefill_pages: int) -> World:
    """Other tenants' requests first, one of them left half-way; then the 27."""
    capacity = Capacity(page_size=16, context_tokens=256, prefill_pages=prefill_pages, decode_pages=20)
    earlier = [
        SimRequest(RequestId(f"earlier-{n}"), TenantId(f"tenant-{n}"), 100 + n, 20, leaves_after=10 if n == 3 else None)
        for n in range(8)
    ]
    oversize = [SimRequest(RequestId(f"long-{n}"), TenantId(f"long-{n}"), 200, 8) for n in range(OVERSIZE)]
    setup = Setup(rules, capacity, rewrites=(placeholder_on_refusal(capacity),), concurrency=2, checked=False)
    return World(setup, [*earlier, *oversize]).run()


@pytest.mark.parametrize(
    ("rules", "prefill_pages", "leaked"),
    [(UNGUARDED, 10, OVERSIZE), (Rules.all(), 10, 0), (UNGUARDED, 16, 0), (Rules.all(), 16, 0)],
    ids=["small-unguarded", "small-guarded", "large-unguarded", "large-guarded"],
)
def test_it_leaks_only_with_the_small_pool_and_without_the_guards(
    rules: Rules, prefill_pages: int, leaked: int
) -> None:
    """27 answers read other tenants' bytes in one of the four runs, none in the others."""
    world = play(rules, prefill_pages)
    assert len(world.oracle.leaks()) == leaked
    assert all(request.startswith("long-") for request in world.oracle.leaks())


def test_a_leaked_answer_looks_like_any_other() -> None:
    """Nothing in how it ended tells: it has all its tokens and no error."""
    world = play(UNGUARDED, 10)
    answer = world.answers[RequestId("long-0")]
    assert (answer.reason, answer.num_tokens) == (EndReason.LENGTH, 8)


def test_the_refusal_reaches_the_client_where_the_guards_are_on() -> None:
    """Each of the 27 hears that it does not fit."""
    answers = play(Rules.all(), 10).answers
    assert [answers[RequestId(f"long-{n}")].reason for n in range(OVERSIZE)] == [EndReason.DOES_NOT_FIT] * OVERSIZE


def test_the_pictures_show_whose_bytes_lay_in_the_pages() -> None:
    """Before and after: of the pages reserved for a long prompt only the first was written for it."""
    before, after = play(UNGUARDED, 10).pictures(RequestId("long-5"))
    assert [page.page for page in before] == [page.page for page in after]
    owners = [{held.request for held in page.held if held is not None} for page in after]
    assert owners[0] == {"long-5"}
    assert all("long-5" not in owner for owner in owners[1:])
