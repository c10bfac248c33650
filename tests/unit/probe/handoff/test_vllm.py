"""Cases against a pair that hands over as vLLM does: stock, guarded, and with one check alone missing."""

import re
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from kvfence.probe.handoff.pair import Role, Site
from kvfence.probe.handoff.report import make_document, verdict_of
from kvfence.probe.handoff.run import CASES, Engine, Record, Run, probe
from kvfence.probe.handoff.trial import Answer
from tests.unit.probe.handoff.vllm_pair import GUARDED, LEASE_S, Checks, VllmPair, running

ALL = CASES[Engine.VLLM]
BY_NAME = {case.name: case for case in ALL}
LEAKS = ("short-count", "stale-lease", "forged-reference", "poisoned-prefix", "one-block-too-many", "replayed")


async def probed(pair: VllmPair, names: Sequence[str] = (), then: Sequence[str] = (), **more: int) -> Record:
    """Run some cases, all where none is named, and others after them."""
    async with running(pair):
        prefill, decode = pair.urls
        site = Site(urls={Role.PREFILL: prefill, Role.DECODE: decode}, timeout_s=10)
        cases = tuple(BY_NAME[name] for name in (*(names or BY_NAME), *then))
        return await probe(
            Run(engine=Engine.VLLM, site=site, cases=cases, seed=5, lease_s=LEASE_S, tries=more.get("tries", 1))
        )


def answers(record: Record) -> dict[str, Answer]:
    """Give each case's answer by its name, the honest ones apart."""
    assert not record.why
    assert all(each.answer is Answer.CORRECT for each in record.found[:2])
    return {each.case.name: each.answer for each in record.found[2:]}


async def test_a_stock_pair_leaks_in_every_known_case_and_dies_of_one() -> None:
    """Each case reads as the engine's reports say; the case that ends decode comes last."""
    record = await probed(VllmPair())
    found = dict.fromkeys(LEAKS, Answer.LEAK)
    assert answers(record) == found | {"unknown-block": Answer.REFUSED, "one-block-too-few": Answer.CRASHED}
    assert verdict_of(record) is Answer.LEAK


@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("recomputes", [False, True])
async def test_a_guarded_pair_refuses_or_answers_correctly(recomputes: bool, hides: bool) -> None:
    """No case is bad, whether what is refused fails or is computed anew, and whether blocks are named in the open."""
    record = await probed(VllmPair(GUARDED, recomputes=recomputes, hides=hides))
    expected = dict.fromkeys([case.name for case in ALL], Answer.CORRECT if recomputes else Answer.REFUSED)
    expected["poisoned-prefix"] = Answer.CORRECT
    expected["unknown-block"] = Answer.CORRECT if hides else Answer.REFUSED
    assert answers(record) == expected
    assert verdict_of(record) in (Answer.REFUSED, Answer.CORRECT)


@pytest.mark.parametrize(
    ("without", "bad"),
    [
        ("count", ["one-block-too-many"]),
        ("lease", ["stale-lease"]),
        ("prompt", ["forged-reference", "poisoned-prefix"]),
        ("once", ["replayed"]),
    ],
)
async def test_each_check_that_is_missing_is_found_by_its_case(without: str, bad: list[str]) -> None:
    """A pair that lacks one check is bad in that check's cases alone."""
    checks = replace(GUARDED, **{without: False})
    if without == "count":  # the count alone catches what a prompt's name would catch as well
        checks = Checks(lease=True, once=True)
        bad = ["short-count", "forged-reference", "poisoned-prefix", "one-block-too-many"]
    pair = VllmPair(checks)
    if without == "once":  # on a machine that is slow the lease would be over first
        pair.leased_s = 60.0
    names = [case.name for case in ALL if not case.crashes]
    found = answers(await probed(pair, names))
    assert sorted(name for name, answer in found.items() if answer.is_bad) == sorted(bad)


async def test_an_answer_that_is_not_the_prompts_is_wrong_text() -> None:
    """Without a marker of the other's, an answer that prefill alone would not give is wrong, not a leak."""
    pair = VllmPair()
    pair.garbles = True
    record = await probed(pair, ["forged-reference"])
    assert [each.answer for each in record.found] == [Answer.CORRECT, Answer.CORRECT, Answer.WRONG]


async def test_an_answer_that_cannot_be_read_is_could_not_tell() -> None:
    """200 with a body that is no answer is neither a wrong text nor a correct one."""
    pair = VllmPair()
    pair.mumbles = True
    record = await probed(pair, ["forged-reference"])
    assert record.found[-1].answer is Answer.UNKNOWN
    assert record.found[-1].tries[0].why == "an answer that cannot be read"


async def test_a_model_that_repeats_nothing_tells_nothing() -> None:
    """Neither a leak nor a correct answer could be seen, so it is COULD NOT TELL."""
    pair = VllmPair()
    pair.says = lambda _: " so so"
    record = await probed(pair, ["forged-reference"])
    assert {each.answer for each in record.found} == {Answer.UNKNOWN}


async def test_a_decode_that_refuses_everything_is_not_taken_for_guarded() -> None:
    """Where an honest hand-off is refused, a refusal says nothing of a case."""
    pair = VllmPair()
    pair.refuses_all = True
    record = await probed(pair, ["forged-reference", "short-count"])
    assert [each.answer for each in record.found[2:]] == [Answer.UNKNOWN] * 2
    assert verdict_of(record) is Answer.UNKNOWN


async def test_a_decode_that_takes_nothing_is_not_taken_for_guarded() -> None:
    """A decode that computes everything itself answers correctly, and no hand-off was tried."""
    pair = VllmPair()
    pair.takes = False
    record = await probed(pair, ["forged-reference"])
    assert {each.answer for each in record.found} == {Answer.UNKNOWN}
    assert "took nothing from prefill" in record.found[0].tries[0].why


async def test_a_pair_that_serves_others_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent while somebody else is served: what their blocks held could be read."""
    monkeypatch.setattr("kvfence.probe.handoff.run.IDLE_S", 0.0)
    pair = VllmPair()
    pair.running = 1
    record = await probed(pair, ["short-count"])
    assert (record.found, record.requests) == ((), 0)
    assert "serves other requests" in record.why
    assert verdict_of(record) is Answer.UNKNOWN


async def test_a_lease_that_does_not_end_is_could_not_tell() -> None:
    """A case that could not be set up is no answer, and says what to name."""
    pair = VllmPair(GUARDED)
    pair.leased_s = 600
    record = await probed(pair, ["stale-lease"])
    assert record.found[-1].answer is Answer.UNKNOWN
    assert "--lease-s" in record.found[-1].tries[-1].why


async def test_after_a_crash_nothing_more_is_asked() -> None:
    """What comes behind a crash is COULD NOT TELL, and says why."""
    record = await probed(VllmPair(), ["one-block-too-few"], then=["forged-reference"])
    assert [each.answer for each in record.found[2:]] == [Answer.CRASHED, Answer.UNKNOWN]
    assert "crashed" in record.found[-1].tries[0].why
    assert verdict_of(record) is Answer.CRASHED


async def test_a_case_is_tried_until_it_is_found() -> None:
    """What is bad is not tried again; what is not bad is, as often as asked."""
    record = await probed(VllmPair(), ["forged-reference", "unknown-block"], tries=3)
    assert [len(each.tries) for each in record.found] == [3, 3, 1, 3]


async def test_a_report_holds_no_text_unless_it_is_kept() -> None:
    """Markers, prompts and answers stand in no document; with evidence kept, what leaked does."""
    record = await probed(VllmPair(), ["forged-reference"])
    leaked = record.found[-1].tries[0]
    assert leaked.reply is not None
    assert leaked.chance is not None
    assert leaked.chance < 1e-5
    words = set(re.findall(r"[a-z]{4,}", leaked.reply.text))
    plain, kept = (str(make_document(record, keep)) for keep in (False, True))
    assert not any(word in plain for word in words)
    assert all(word in kept for word in words)
