"""Cases against a pair that meets in rooms as SGLang's does, by what its prefill does with what it refuses."""

import pytest

from kvfence.probe.handoff.pair import Role, Site
from kvfence.probe.handoff.run import CASES, Engine, Record, Run, probe
from kvfence.probe.handoff.trial import Answer
from tests.unit.probe.handoff.sglang_pair import PREFILL_LIMIT, Release, SglangPair
from tests.unit.probe.handoff.vllm_pair import running


async def probed(pair: SglangPair) -> Record:
    """Run the engine's cases."""
    async with running(pair):
        prefill, decode = pair.urls
        site = Site(urls={Role.PREFILL: prefill, Role.DECODE: decode}, timeout_s=10)
        return await probe(Run(engine=Engine.SGLANG, site=site, cases=CASES[Engine.SGLANG], seed=5, tries=1))


@pytest.mark.parametrize(
    ("release", "answer", "status"),
    [
        (Release.STUB, Answer.LEAK, 200),
        (Release.SILENT, Answer.REFUSED, 500),
        (Release.GUARDED, Answer.REFUSED, 400),
    ],
)
async def test_a_refused_prompt_reads_as_the_release_does(release: Release, answer: Answer, status: int) -> None:
    """Out of old pages it is a leak; refused at both ends it is a refusal, with its status."""
    record = await probed(SglangPair(release))
    found = record.found[-1]
    assert found.answer is answer
    assert found.tries[-1].reply is not None
    assert found.tries[-1].reply.status == status


async def test_an_answer_to_what_prefill_did_not_compute_is_wrong_text() -> None:
    """Where the old pages show no marker, the two counts still tell that nobody had written them."""
    pair = SglangPair(Release.STUB)
    pair.slots = [0] * len(pair.slots)
    complete = pair._complete

    async def forgetful(role: str, body: dict[str, object], wire: object) -> None:
        pair.slots = [0] * len(pair.slots)
        await complete(role, body, wire)  # type: ignore[arg-type]

    pair._complete = forgetful  # type: ignore[method-assign, assignment]
    found = (await probed(pair)).found[-1]
    assert found.answer is Answer.WRONG
    assert "prefill computed 1 tokens" in found.tries[0].why


async def test_equal_limits_leave_nothing_to_try() -> None:
    """A pair whose prefill takes what decode takes has no such prompt, and that is said."""
    found = (await probed(SglangPair(Release.GUARDED, PREFILL_LIMIT))).found[-1]
    assert found.answer is Answer.UNKNOWN
    assert "nothing is refused by prefill alone" in found.tries[0].why
