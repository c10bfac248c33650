"""Observing on the real path: honest traffic is counted as nothing, a damaged page is counted and answered."""

import pytest

from kvfence.protocol.guards import OBSERVABLE, Rules
from kvfence.protocol.messages import EndReason
from tests.integration.runtime.faults import Fault
from tests.integration.runtime.pairs import Pair, Scene, until

SCENE = Scene(rules=Rules.observing())
pytestmark = pytest.mark.asyncio(loop_scope="module")


def counts(pair: Pair) -> dict[str, int]:
    """What would have been refused so far, by guard and place."""
    beats = pair.supervisor.beats().values()
    found = (
        (f"{guard}@{place}", count)
        for beat in beats
        for guard, place, answer, count in beat.decisions
        if answer == "observed"
    )
    return dict(found)


async def test_honest_traffic_is_counted_as_nothing(pair: Pair) -> None:
    """Requests of several pages, side by side, are answered right and no guard would have refused any."""
    streams = [pair.stream(range(number, number + 50), 20) for number in (100, 300, 500)]
    for stream in streams:
        assert await stream.finish() is EndReason.LENGTH
        assert stream.right
    await pair.all_free()
    assert counts(pair) == {}


async def test_a_damaged_page_is_counted_and_answered(pair: Pair) -> None:
    """The client gets an ordinary end over wrong bytes, which is what observing costs; count and trace say so."""
    pair.faults.arm(Fault("corrupt", "body"))
    stream = pair.stream(range(100, 150), 20)
    assert await stream.finish() is EndReason.LENGTH
    assert not stream.right
    await until("it is counted", lambda: counts(pair) == {"digest-matches@decode": 1})
    header_observed = {f"{d.guard}@{d.place}" for step in pair.steps("decode") for d in step.decisions if d.observed}
    assert header_observed == OBSERVABLE
    await pair.all_free()
