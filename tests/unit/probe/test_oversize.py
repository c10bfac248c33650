"""The ladder: where it takes prompts to be lost, and how long it waits for one that is never answered."""

import random

import pytest
from msgspec.structs import replace

from kvfence.probe.budget import Budget
from kvfence.probe.client import Client
from kvfence.probe.door import Door
from kvfence.probe.exchange import Ask, Exchange, Phase, Trouble
from kvfence.probe.markers import draw_markers
from kvfence.probe.phases.oversize import Ladder, lost_from, wait_out
from kvfence.probe.stage import PATIENCE_S, Stage


def test_one_miss_of_a_faithful_model_is_a_place_and_of_a_forgetful_one_is_not() -> None:
    """Who repeats nearly always loses a prompt only for a reason."""
    seen = [(100, True), (200, True), (300, False)]
    assert lost_from(seen, 0.95) == 300
    assert lost_from(seen, 0.6) is None
    assert lost_from([*seen, (310, False), (350, False)], 0.6) == 300


def test_a_short_prompt_that_was_not_repeated_is_no_place_where_longer_ones_are() -> None:
    """Two misses far below lengths that are repeated are the model's own: the ladder stays where it was."""
    seen = [(20, False), (36, False), *((height, True) for height in (100, 400, 500, 700))]
    assert lost_from(seen, 0.8) is None


@pytest.mark.parametrize("echo_rate", [0.6, 0.75, 0.95])
@pytest.mark.parametrize("seed", range(5))
def test_the_place_is_found_among_misses_by_chance(echo_rate: float, seed: int) -> None:
    """With prompts lost from 1,000 on, sixty answers of a model that forgets some place it near."""
    rng = random.Random(seed)
    heights = [rng.randrange(100, 1500) for _ in range(60)]
    seen = [(height, rng.random() < (echo_rate if height < 1000 else 0.1)) for height in heights]
    place = lost_from(seen, echo_rate)
    assert place is not None
    assert 700 <= place <= 1200


def test_a_model_that_repeats_as_seldom_as_a_lost_prompt_shows_nothing() -> None:
    """Where nothing can be told apart no place is named."""
    assert lost_from([(300, False)] * 20, 0.2) is None


async def test_one_prompt_that_is_never_answered_is_waited_for_and_no_other_as_long() -> None:
    """Once a rung has outlasted its patience, all are given four times their due, and those as long little more."""
    door = Door(base_url="http://127.0.0.1:9/v1", model="m", keys={"tenant-1": "", "tenant-2": ""})
    async with Client(door, 1) as client:
        stage = Stage(client, Budget(), draw_markers(1, door.tenants), 1)
        stage.calibration = replace(stage.calibration, tokens_per_s=1_000.0)
        ladder = Ladder(stage)
        ask = Ask(number=1, tenant="tenant-1", phase=Phase.OVERSIZE, prompt="", max_tokens=8, num_tokens=1_500)
        refused = Exchange(ask=ask, sent_s=0.0, ended_s=0.1, status=400, trouble=Trouble.REFUSED)
        ladder.learn([refused])
        assert ladder.patience(1_500).total_s == PATIENCE_S
        ladder.learn([replace(refused, status=None, ended_s=PATIENCE_S, trouble=Trouble.UNREACHABLE)])
        assert ladder.patience(1_400).total_s == pytest.approx(30.0 + 4 * 1.4)
        assert ladder.patience(1_500).total_s == pytest.approx(5.0 + 4 * 1.5)
        ladder.learn(
            [replace(refused, ask=replace(ask, num_tokens=800), status=None, ended_s=9.0, trouble=Trouble.UNREACHABLE)]
        )
        assert stage.calibration.unanswered_tokens == 800
        ladder.learn([replace(refused, status=None, ended_s=PATIENCE_S, trouble=Trouble.UNREACHABLE)])
        assert Ladder(stage).patience(800).total_s == pytest.approx(5.0 + 4 * 0.8)


async def test_who_stood_behind_a_prompt_that_hung_is_not_taken_for_it() -> None:
    """A shorter rung of its group, waited for in vain as well, lies below one that is answered."""
    door = Door(base_url="http://127.0.0.1:9/v1", model="m", keys={"tenant-1": "", "tenant-2": ""})
    async with Client(door, 1) as client:
        stage = Stage(client, Budget(), draw_markers(1, door.tenants), 1)
        ask = Ask(number=1, tenant="tenant-1", phase=Phase.OVERSIZE, prompt="", max_tokens=8, num_tokens=700)
        answered = Exchange(ask=ask, sent_s=0.0, ended_s=0.1, status=200)
        hung = replace(answered, status=None, ended_s=30.0, trouble=Trouble.UNREACHABLE)
        group = [replace(hung, ask=replace(ask, num_tokens=height)) for height in (600, 1_500)]
        Ladder(stage).learn([answered, *group])
        assert stage.calibration.unanswered_tokens == 1_500


async def test_rungs_stand_where_the_search_for_the_limit_did_not_end() -> None:
    """Between the longest prompt that was answered and the shortest that was not, the limit that matters may lie."""
    door = Door(base_url="http://127.0.0.1:9/v1", model="m", keys={"tenant-1": "", "tenant-2": ""})
    async with Client(door, 1) as client:
        stage = Stage(client, Budget(), draw_markers(1, door.tenants), 1)
        stage.calibration = replace(stage.calibration, limit_low=800, limit_high=1_600)
        assert {1_200, 1_400} <= set(Ladder(stage).take(9))
        stage.calibration = replace(stage.calibration, limit_tokens=800, limit_high=801)
        assert max(Ladder(stage).take(9)) <= 801


@pytest.mark.parametrize(("took_s", "asked"), [(300.0, False), (1.0, True)])
async def test_nothing_more_is_waited_for_where_a_refusal_took_minutes(took_s: float, asked: bool) -> None:
    """What the patient wait is for has been seen."""
    door = Door(base_url="http://127.0.0.1:9/v1", model="m", keys={"tenant-1": "", "tenant-2": ""})
    async with Client(door, 1) as client:
        stage = Stage(client, Budget(), draw_markers(1, door.tenants), 1)
        stage.calibration = replace(stage.calibration, unanswered_tokens=1_500)
        ask = Ask(number=1, tenant="tenant-1", phase=Phase.SEED, prompt="", max_tokens=8)
        stage.exchanges = [Exchange(ask=ask, sent_s=0.0, ended_s=took_s, status=400, trouble=Trouble.REFUSED)]
        await wait_out(stage)
        assert (len(stage.exchanges) > 1) == asked
