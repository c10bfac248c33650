"""A run from first look to record: within its budget, with every phase, and with what it has where it ends early."""

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from kvfence.probe import pacing
from kvfence.probe import stage as stages
from kvfence.probe.budget import Budget
from kvfence.probe.client import Client
from kvfence.probe.door import Api
from kvfence.probe.exchange import Cut, Exchange, Phase, Record, Trouble
from kvfence.probe.markers import draw_markers
from kvfence.probe.phases import limits, oversize
from kvfence.probe.run import PHASES, Run, look, probe
from kvfence.probe.stage import Canary, Ended, Stage, echoes
from kvfence.probe.verdict import Verdict, judge
from tests.unit.probe.fakes import Fake, Model, Seen, Wire, door_to

SMALL = Budget(requests_max=72, concurrency=4)


async def run_on(fake: Fake, budget: Budget = SMALL, **more: Any) -> Record:
    """A run against a fake."""
    api = more.pop("api", Api.COMPLETIONS)
    asked = Run(door=door_to(fake, api), budget=budget, seed=3, **more)
    return await probe(asked, (await look(asked.door)).context)


def foreign(record: Record) -> list[int]:
    """Answers that hold another tenant's marker."""
    return [
        each.ask.number
        for each in record.exchanges
        for tenant, markers in record.planted.items()
        if tenant != each.ask.tenant and any(marker in each.text for marker in markers)
    ]


async def test_a_sound_server_is_asked_in_every_phase_and_within_the_budget() -> None:
    """All phases are there in small, no request is sent above the bound, and nobody else's marker comes back."""
    async with Fake(Model()) as fake:
        record = await run_on(fake)
    sent = [seen for seen in fake.seen if seen.method == "POST"]
    assert {each.ask.phase for each in record.exchanges} == set(PHASES)
    assert len(sent) <= len(record.exchanges) <= SMALL.requests_max  # one that left at once may not have arrived
    assert (record.cut, foreign(record)) == (None, [])
    assert record.calibration.limit_tokens == 400
    assert record.calibration.echoes is not None
    assert record.calibration.echoes[0] == record.calibration.echoes[1]


async def test_a_hidden_limit_is_found_and_its_leak_is_read() -> None:
    """Where prompts above an unnamed length are answered from others' text, the ladder comes to stand there."""
    async with Fake(Model(hidden=250)) as fake:
        record = await run_on(fake)
    rungs = [each for each in record.exchanges if each.ask.phase is Phase.OVERSIZE]
    lost = [each for each in rungs if (each.prompt_tokens or 0) > 250]
    assert len(foreign(record)) >= 5
    assert not any(map(echoes, lost)) or len(lost) > len(rungs) // 2
    assert set(foreign(record)) <= {e.ask.number for e in record.exchanges if len(e.ask.prompt.split()) > 250}


async def rungs_of(budget: Budget, told: int | None = None, **model: Any) -> list[int]:
    """The lengths of a ladder on a server that lists no context."""
    async with Fake(Model(context=None, **model)) as fake:
        record = await probe(Run(door=door_to(fake, Api.COMPLETIONS), budget=budget, seed=3), told)
    assert told is None or record.calibration.advertised_tokens == told
    ladder = [each for each in record.exchanges if each.ask.phase is Phase.OVERSIZE]
    return [each.prompt_tokens or each.ask.num_tokens or 0 for each in ladder if each.ask.role == "ladder"]


FEW = replace(SMALL, requests_max=44)
"""Too few to search for a limit."""


async def test_a_context_that_only_the_caller_knows_gives_the_ladder_its_lengths() -> None:
    """A router that names no context, and a budget too small to search: the told one says where to look."""
    assert max(await rungs_of(FEW, limit=10_000)) < 2050
    assert 3800 < max(await rungs_of(FEW, 4000, limit=10_000)) < 4050


async def test_a_limit_that_a_refusal_names_gives_the_ladder_its_lengths() -> None:
    """One overlong prompt is tried however small the budget: its refusal names what /models does not."""
    assert 1400 < max(await rungs_of(FEW, limit=1500)) < 1550
    assert 450 < max(await rungs_of(FEW, limit=500)) < 520


async def test_a_ladder_that_meets_no_limit_goes_on_above(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the search had no requests left, an answer at the top says that the limit lies higher."""
    monkeypatch.setattr(limits, "LEFT_FOR_MORE", 99)
    heights = await rungs_of(replace(SMALL, requests_max=120), limit=9_000)
    assert max(heights) == limits.FIRST_GUESS * limits.GROWTH


async def test_a_slow_server_is_waited_for_as_long_as_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that is only slow is not taken for refused: one was timed before the search for the limit."""
    monkeypatch.setattr(limits, "WAIT_S", 0.1)
    monkeypatch.setattr(limits, "SLOWEST_RATE", 1e6)
    async with Fake(Model(limit=600, rate=1_500.0)) as fake:
        record = await run_on(fake, phases=())
    assert record.calibration.limit_low is not None
    assert record.calibration.limit_low >= 500


async def test_what_is_never_answered_is_waited_for_last_and_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who hears nothing above a limit goes on; the patient wait, which may keep others waiting, ends the run."""
    monkeypatch.setattr(limits, "WAIT_S", 0.1)
    monkeypatch.setattr(stages, "HURRIED_S", 0.1)
    for module in (limits, oversize):
        monkeypatch.setattr(module, "HURRIED_S", 0.1)
    monkeypatch.setattr(limits, "PATIENCE_S", 1.0)
    monkeypatch.setattr(oversize, "PATIENCE_S", 4.0)
    phases = (Phase.SEED, Phase.OVERSIZE, Phase.REPLAY)
    model = Model(limit=300, hangs=True)
    async with Fake(model) as fake:
        record = await run_on(fake, replace(SMALL, requests_max=100), phases=phases)
        model.released.set()
    *before, last = record.exchanges
    assert last.ask.role == "ladder"
    assert last.ask.num_tokens == record.calibration.unanswered_tokens
    assert stages.is_unanswered(last)
    assert not last.ask.stream
    assert before[-1].ask.phase is Phase.REPLAY
    assert 0 < max(each.ended_s - each.sent_s for each in before if stages.is_unanswered(each)) < 3.9
    assert last.ended_s - last.sent_s > 3.9


async def test_seeds_that_were_waited_for_in_vain_become_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal that took long is learned from: no round of seeds after it is as long."""
    monkeypatch.setattr(stages, "HURRIED_S", 0.1)
    model = Model(limit=220, hangs=True)
    async with Fake(model) as fake, Client(door_to(fake, Api.COMPLETIONS), 8) as client:
        stage = Stage(client, replace(SMALL, requests_max=32), draw_markers(3, client.door.tenants), 3)
        stage.phase = Phase.SEED
        late = asyncio.get_running_loop().call_later
        client.on_send = lambda _: (stage.tally.sent(stage.phase), late(0.3, model.released.set))
        await PHASES[Phase.SEED](stage)
        hung = stage.hung_tokens or 0
        whole = Canary(tenant="tenant-1", phase=Phase.SEED, role="natural", num_tokens=hung, max_tokens=8)
        stage.calibration = replace(stage.calibration, limit_low=2 * hung)
        assert oversize.Ladder(stage).seed_tokens == hung // 2
        model.limit, stage.budget = 9_000, SMALL
        await stage.send(whole)
        assert stage.hung_tokens is None
    refused = [each.trouble is Trouble.REFUSED for each in stage.exchanges]
    assert refused.count(True) == 4
    assert not any(refused[-8:])


async def test_the_same_seed_sends_the_same() -> None:
    """Markers, texts and lengths follow from the seed: what is sent alone is sent again to the letter."""
    bodies = []
    for _ in range(2):
        async with Fake(Model()) as fake:
            record = await run_on(fake, replace(SMALL, concurrency=1), phases=(Phase.SEED, Phase.OVERSIZE))
        bodies.append([each.ask.prompt for each in record.exchanges])
    assert bodies[0] == bodies[1]


async def test_no_request_begins_as_another_does() -> None:
    """Caches of prefixes know no beginning: each prompt has a number of its own, but for those repeated on purpose."""
    async with Fake(Model()) as fake:
        record = await run_on(fake, phases=(Phase.SEED, Phase.OVERSIZE, Phase.ABORT, Phase.PRESSURE))
    begins = Counter(each.ask.prompt[:7] for each in record.exchanges if each.ask.role != "twice")
    assert max(begins.values()) == 1


async def test_what_is_asked_after_others_is_new_to_every_cache() -> None:
    """A prompt of a lot is the same each time but for the number it begins with, and counts as one."""
    async with Fake(Model()) as fake:
        record = await run_on(fake, replace(SMALL, requests_max=100), phases=(Phase.REPLAY,))
    texts: dict[tuple[str, int | str], list[str]] = {}
    for each in record.exchanges:
        if each.ask.role in ("before", "after-b", "after-c"):
            texts.setdefault((each.ask.group, each.ask.text_id), []).append(each.ask.prompt)
    assert len(texts) >= 3
    assert all(len(asked) == len(set(asked)) > 1 for asked in texts.values())
    assert all(len({prompt[7:] for prompt in asked}) == 1 for asked in texts.values())


async def test_after_a_client_that_leaves_another_tenant_comes_at_once() -> None:
    """Each that goes is followed by one of another tenant and of its length, before others of its kind go."""
    async with Fake(Model()) as fake:
        record = await run_on(fake, replace(SMALL, requests_max=120), phases=(Phase.ABORT,))
    groups: dict[str, dict[str, list[Exchange]]] = {}
    for each in record.exchanges:
        if each.ask.phase is Phase.ABORT:
            groups.setdefault(each.ask.group, {}).setdefault(each.ask.role, []).append(each)
    assert len(groups) >= 3
    for pair in list(groups.values()):
        left, reuse = pair["left"], pair["reuse"]
        assert len(left) == len(reuse)
        assert {each.ask.tenant for each in left}.isdisjoint(each.ask.tenant for each in reuse)
        nexts = sorted(each.sent_s for each in reuse)
        assert all(came >= went for went, came in zip(sorted(each.ended_s for each in left), nexts, strict=True))
    assert max(len(pair["left"]) for pair in groups.values()) > 1 == min(len(pair["left"]) for pair in groups.values())


async def test_an_endpoint_without_usage_seed_and_logprobs_is_probed_all_the_same() -> None:
    """What is refused is left out, what is not told stays unknown, and every phase is run."""
    async with Fake(Model(has_usage=False, context=None, refuses=("seed", "logprobs", "stream_options"))) as fake:
        record = await run_on(fake)
    calibration = record.calibration
    assert (calibration.has_usage, calibration.has_seed, calibration.has_logprobs) == (False, False, False)
    assert calibration.tokens_per_word is None
    assert {each.ask.phase for each in record.exchanges} == set(PHASES)
    assert all(each.ask.num_tokens is None for each in record.exchanges)


async def test_a_model_that_thinks_is_read_aside() -> None:
    """Where the answer is empty and the reasoning repeats the marker, the positive control holds."""
    async with Fake(Model(aside=True)) as fake:
        record = await run_on(fake, api=Api.CHAT, phases=(Phase.SEED,))
    assert record.calibration.echoes is not None
    assert record.calibration.echoes[0] == record.calibration.echoes[1]
    assert all(each.text == "" for each in record.exchanges)


async def test_what_leaks_into_a_models_thoughts_is_found() -> None:
    """Another's text in reasoning alone is in an answer all the same."""
    async with Fake(Model(aside=True, hidden=250)) as fake:
        record = await run_on(fake, replace(SMALL, requests_max=90), api=Api.CHAT)
    assert judge(record).verdict is Verdict.LEAK
    assert all(each.text == "" for each in record.exchanges)


async def test_the_route_that_answers_is_taken() -> None:
    """Without one named, completions are tried first and chat where they are not served."""
    model = Model()

    async def handler(seen: Seen, wire: Wire) -> None:
        if seen.path.endswith("/v1/completions"):
            await wire.answer(404, {"error": {"message": "not found"}})
        else:
            await model(seen, wire)

    async with Fake(handler) as fake:
        record = await run_on(fake, api=None, phases=(Phase.SEED,))
    assert (record.cut, record.target.path) == (None, "/chat/completions")


class Ending(Struct):
    """A deadline that is always as near."""

    left_s: float = 0.3


async def test_an_answer_that_the_runs_end_cuts_off_is_no_fault_of_the_server() -> None:
    """The probe leaves when its time is over: the stream did not break off."""

    async def endless(_: Seen, wire: Wire) -> None:
        await wire.head(200, {"content-type": "text/event-stream"})
        while True:
            await wire.send(b'data: {"choices": [{"text": "so "}]}\n\n')
            await asyncio.sleep(0.05)

    async with Fake(endless) as fake, Client(door_to(fake), 4) as client:
        stage = Stage(client, SMALL, draw_markers(3, client.door.tenants), 3)
        stage.deadline = Ending()  # type: ignore[assignment]
        heard = await stage.send(
            Canary(tenant="tenant-1", phase=Phase.SEED, role="natural", num_tokens=40, max_tokens=16)
        )
    assert (heard.trouble, heard.status) == (Trouble.LEFT, 200)
    assert heard.text


async def test_an_overloaded_server_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many refusals for load the run ends; second tries are few, and nothing is sent into the overload."""
    monkeypatch.setattr(pacing, "PAUSE_S", 0.0)
    async with Fake(Model(busy_from=30)) as fake:
        record = await run_on(fake)
    asked = sum(seen.method == "POST" for seen in fake.seen)
    assert record.cut is Cut.OVERLOAD
    assert asked <= 30 + pacing.STRIKES_MAX + SMALL.concurrency
    assert record.calibration.limit_tokens is not None


async def test_a_pause_that_outlasts_the_time_ends_the_run() -> None:
    """Asked to come back in a minute when no more is left, it ends as any run whose time is over, and asks no more."""
    model = Model(busy_from=0, retry_after="60")
    async with Fake(model) as fake, Client(door_to(fake), 4) as client, asyncio.timeout(40):
        stage = Stage(client, replace(SMALL, minutes_max=9.0), draw_markers(1, client.door.tenants), 1)
        assert stage.pacer.ends_s == stage.deadline.ends_s
        stage.pacer.ends_s = time.monotonic()
        canary = Canary(tenant="tenant-1", phase=Phase.SEED, role="natural", num_tokens=40, max_tokens=4)
        with pytest.raises(Ended, match="pause") as ended:
            await stage.send(canary)
    assert (ended.value.cut, model.asked) == (Cut.BUDGET, 1)


async def test_a_server_that_dies_leaves_a_partial_record() -> None:
    """What came before is kept, and the reason stands beside it."""
    async with Fake(Model(dies_from=50)) as fake:
        record = await run_on(fake)
    assert record.cut is Cut.GONE
    assert sum(each.trouble is None for each in record.exchanges) > 20


async def test_a_server_that_nobody_runs_is_gone() -> None:
    """Nothing to calibrate against: the run ends, and says why."""
    async with Fake(Model()) as fake:
        door = door_to(fake)
    record = await probe(Run(door=door, budget=SMALL, seed=1))
    assert record.cut is Cut.GONE
    assert record.cut_why.startswith("not answered: no answer")


async def test_a_stopped_run_leaves_a_partial_record() -> None:
    """Ctrl-C cancels what is open, and all that was heard is in the record."""
    model = Model()
    reached = asyncio.Event()

    async def handler(seen: Seen, wire: Wire) -> None:
        if model.asked >= 20:
            reached.set()
            await asyncio.Event().wait()
        await model(seen, wire)

    async with Fake(handler) as fake:
        task = asyncio.create_task(run_on(fake))
        async with asyncio.timeout(30):
            await reached.wait()
        task.cancel()
        record = await task
    assert record.cut is Cut.STOPPED
    assert len(record.exchanges) >= 18


async def test_cached_replies_are_no_foreign_text() -> None:
    """A server that keeps answers gives one's own again; every prompt but the repeated ones is new to it."""
    model, kept = Model(), dict[str, list[str]]()

    async def handler(seen: Seen, wire: Wire) -> None:
        prompt = str(seen.body.get("prompt"))
        kept.setdefault(prompt, []).append("asked")
        await model(seen, wire)

    async with Fake(handler) as fake:
        record = await run_on(fake)
    repeated = {each.ask.role for each in record.exchanges if len(kept.get(each.ask.prompt, [])) > 1}
    assert repeated <= {"twice", "alone", "loaded"}
    assert foreign(record) == []


async def test_a_token_budget_shrinks_phases_and_leaves_none_out() -> None:
    """With a tenth of the tokens the run is smaller, stays within the bound, and has every phase."""
    budget = Budget(requests_max=200, tokens_max=16_000, concurrency=4)
    async with Fake(Model()) as fake:
        record = await run_on(fake, budget)
    spent = sum((each.prompt_tokens or 0) + (each.completion_tokens or 0) for each in record.exchanges)
    assert spent <= 16_000
    assert len({each.ask.phase for each in record.exchanges}) == len(PHASES)


async def test_refusals_for_load_are_tried_again_a_few_times_only() -> None:
    """One 429 is waited out and asked again: the answer is in the record, and so is the refusal."""
    model, refused = Model(), []

    async def handler(seen: Seen, wire: Wire) -> None:
        if seen.method == "POST" and model.asked > 30 and not refused and len(seen.body["prompt"]) < 2000:
            refused.append(seen.body["prompt"])
            await wire.answer(429, {"error": {"message": "later"}}, retry_after="0.01")
        else:
            await model(seen, wire)

    async with Fake(handler) as fake:
        record = await run_on(fake, replace(SMALL, concurrency=1))
    again = [each.trouble for each in record.exchanges if each.ask.prompt in refused]
    assert again[:2] == [Trouble.LIMITED, None]
    assert record.cut is None
