"""Practice servers whose page writes go wrong: with its guard put back the same fault does no harm."""

import asyncio

import openai
import pytest

from kvfence.ranges.catalogue import PAGES_MIN
from kvfence.ranges.orders import Orders
from kvfence.ranges.writers import dice_of
from tests.integration.ranges.served import TEXTS, Client, Said, running, until

LONG = 160
"""Words of a prompt that several pages hold."""


def foreign(said: Said, whose: str) -> bool:
    """Does an answer hold a word that only this tenant's texts hold?"""
    marker = TEXTS[whose].split()[0]
    return marker in said.text or any(word in said.text for word in TEXTS[whose].split() if len(word) > 4)


async def turns(ada: Client, bob: Client, rounds: int = 2) -> list[Said]:
    """Let both ask in turn; give what bob was answered."""
    heard = []
    for _ in range(rounds):
        await ada.fill(LONG)
        heard.append(await bob.fill(LONG))
    return heard


@pytest.mark.parametrize("name", ["torn-write", "stale-reference"])
async def test_what_lands_wrong_is_read(name: str) -> None:
    """Another tenant's words stand in an answer with status 200, and short requests are answered right."""
    async with running(name) as server:
        heard = await turns(server.ada, server.bob)
        assert any(each.status == 200 and foreign(each, "ada") for each in heard)
        assert (await server.bob.ask("Repeat this: plain words")).text == " plain words"


@pytest.mark.parametrize(
    ("name", "guard"),
    [("torn-write", "digest-matches"), ("stale-reference", "stamp-at-adopt"), ("corrupt", "digest-matches")],
)
async def test_with_the_guard_put_back_nothing_of_it_leaves(name: str, guard: str) -> None:
    """The same writes go wrong, and every answer is right or an error."""
    async with running(name, guard) as server:
        heard = await turns(server.ada, server.bob, rounds=1)
        assert {(each.status, each.code) for each in heard} <= {(500, "kv_integrity"), (503, "worker_lost")}


async def test_corrupted_pages_are_garbled() -> None:
    """The answer is neither the tenant's own text nor anybody else's."""
    async with running("corrupt") as server:
        right = await server.bob.ask("Repeat this: plain words")
        said = await server.bob.fill(LONG)
        assert right.text == " plain words"
        assert said.status == 200
        assert not said.text.startswith(TEXTS["bob"][:40])


async def test_a_lost_tail_is_answered_with_what_was_there() -> None:
    """Above half of prefill's pool the end of the prompt is another tenant's text; below, answers are right."""
    async with running("truncated") as server:
        await server.ada.fill(300)
        assert foreign(await server.bob.fill(320), "ada")
        assert not foreign(await server.bob.fill(60), "ada")


async def misdirected(*put_back: str) -> str:
    """Let bob talk at length while ada's hand-off lands; give what bob heard, with the error if there was one."""
    async with running("misdirected", *put_back, decode_rate=100.0) as server:
        heard, began = "", False
        try:
            async for piece in server.bob.stream(server.bob.long_text(), 90):
                heard += piece
                if not began and "BOB-0815" in heard:
                    began = True
                    await server.ada.fill()
        except openai.APIError as error:
            heard += f" {error.code}"
        return heard


async def test_a_misdirected_batch_changes_an_answer_in_its_middle() -> None:
    """The answer begins in the tenant's own words and goes on in another's."""
    heard = await misdirected()
    assert heard.lstrip().startswith("BOB-0815")
    assert "ADA-4711" in heard


async def test_the_comparison_at_read_ends_what_a_misdirected_batch_hits() -> None:
    """Guard stamp-at-read: an error in mid-answer, and no foreign word before it."""
    heard = await misdirected("stamp-at-read")
    assert heard.endswith("kv_integrity")
    assert heard.lstrip().startswith("BOB-0815")
    assert "ADA" not in heard


async def late(*put_back: str) -> Said:
    """Give up bob's request while its batch is on its way, and ask as ada; give her answer."""
    seed = next(seed for seed in range(100) if falls(seed) == [True, False])
    async with running("late-write", *put_back, rate=0.5, seed=seed, held_s=5.0, decode_rate=200.0) as server:
        leaving = asyncio.create_task(server.bob.fill())
        supervisor = server.practice.supervisor

        def states(role: str) -> dict[str, int]:
            return next(beat.states for slot, beat in supervisor.beats().items() if slot.role == role)

        await until("bob's pages are sealed", lambda: states("prefill").get("sealed"))
        leaving.cancel()
        await until("decode has let them go", lambda: not states("decode").get("granted"))
        return await server.ada.fill()


def falls(seed: int) -> list[bool]:
    """Which of the first two batches go wrong?"""
    dice = dice_of(Orders(rate=0.5, seed=seed))
    return [dice.fall(PAGES_MIN) for _ in range(2)]


async def test_a_late_write_lands_in_the_next_ones_pages() -> None:
    """Words of a request that was given up stand in the answer to the next one."""
    said = await late()
    assert said.status == 200
    assert foreign(said, "bob")


async def test_quarantine_keeps_late_writes_from_everyone() -> None:
    """Guard quarantine-on-revoke: the pages are nobody's until the write has landed."""
    said = await late("quarantine-on-revoke")
    assert said.status == 200
    assert not foreign(said, "bob")
