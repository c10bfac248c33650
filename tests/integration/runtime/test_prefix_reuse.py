"""Prompts of one tenant that begin alike share prefill's pages, on real processes; those of two tenants never do."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvfence.core.limits import Limits
from kvfence.protocol.guards import Rules
from kvfence.protocol.messages import EndReason
from tests.integration.runtime.faults import Fault
from tests.integration.runtime.pairs import Pair, Scene, running_pair, until

PROMPT = tuple(range(1000, 1100))
"""Six full pages of 16, and 4 tokens."""


@pytest.fixture
async def fresh(tmp_path: Path) -> AsyncIterator[Pair]:
    """A pair as production runs it."""
    async with running_pair(Scene(), tmp_path) as pair:
        yield pair


async def ask(pair: Pair, prompt: tuple[int, ...], tenant: str, cache_salt: str = "") -> int:
    """Give the tokens that were not computed; every token of the answer is right, and prefill has heard of its end."""
    stream = pair.stream(prompt, 8, tenant=tenant, cache_salt=cache_salt)
    assert await stream.finish() is EndReason.LENGTH
    assert stream.right
    await settled(pair)
    return stream.num_cached


async def settled(pair: Pair) -> None:
    """Wait until no prompt holds a page at prefill: what may be shared can be found."""
    await pair.next_beat("prefill")
    await until("prefill holds nothing", lambda: not {"granted", "sealed"} & set(pair.states("prefill")))


async def test_only_the_same_tenant_shares(fresh: Pair) -> None:
    """The tenant's own prefix is found, whole pages of it; another tenant's and another salt's prompt is computed."""
    assert await ask(fresh, PROMPT, "a") == 0
    assert await ask(fresh, PROMPT, "a") == 96
    assert await ask(fresh, PROMPT, "b") == 0
    assert await ask(fresh, PROMPT, "a", "mine") == 0
    assert await ask(fresh, PROMPT, "a", "mine") == 96
    assert await ask(fresh, (*PROMPT[:40], *range(60)), "a") == 32
    assert await ask(fresh, PROMPT[:96], "a") == 80
    await fresh.all_free()
    assert fresh.states("prefill")["cached"] > 0
    decisions = fresh.life("prefill").beat.decisions
    assert {answer for guard, _, answer, _ in decisions if guard == "tenant-salt"} == {"pass"}


async def test_a_conversation_shares_all_but_its_last_turn(fresh: Pair) -> None:
    """Each turn is the prompt before, the answer and something more: pages of every turn are found."""
    prompt, cached = PROMPT[:20], []
    for turn in range(4):
        stream = fresh.stream(prompt, 20, tenant="a")
        assert await stream.finish() is EndReason.LENGTH
        assert stream.right
        await settled(fresh)
        cached.append(stream.num_cached)
        prompt = (*prompt, *stream.tokens, *range(7 + turn))
    assert cached == [0, 16, 32, 64]


async def test_many_at_once_over_a_small_pool(tmp_path: Path) -> None:
    """Sequences that share, evict and are preempted are right token by token, as without re-use."""
    scene = Scene(prefill_pages=12, decode_pages=20, limits=Limits(cached_lots_max=2))
    async with running_pair(scene, tmp_path) as pair:
        prompts = [(*PROMPT[: 16 * (n % 4)], *range(n, n + 30)) for n in range(24)]
        streams = [pair.stream(p, 40, tenant=f"tenant-{n % 3}") for n, p in enumerate(prompts)]
        for stream in streams:
            assert await stream.finish(60) is EndReason.LENGTH
            assert stream.right
        await pair.all_free()
        prefixes = pair.life("prefill").beat.prefixes
    assert prefixes["hit_tokens"] > 0
    assert prefixes["evicted_pages"] > 0


async def test_off_nothing_is_shared(tmp_path: Path) -> None:
    """With the setting off every prompt is computed and every page is free afterwards."""
    async with running_pair(Scene(prefix_reuse=False), tmp_path) as pair:
        assert [await ask(pair, PROMPT, "a") for _ in range(2)] == [0, 0]
        await pair.all_free()
        assert "cached" not in pair.states("prefill")


async def test_traces_tell_nothing_of_tokens_or_tenants(fresh: Pair) -> None:
    """Salts of two gateways' lives differ and name nobody; no key or digest of tokens is written down."""
    await ask(fresh, PROMPT, "a-tenant-by-name")
    await ask(fresh, PROMPT, "a-tenant-by-name")

    def traces() -> bytes:
        return b"".join(path.read_bytes() for path in fresh.trace_folder.iterdir())

    await until("the shared pages are in the traces", lambda: b'"shared":[{' in traces())
    assert b"a-tenant-by-name" not in traces()
    assert b"1000,1001" not in traces()


async def test_without_the_guard_a_wrong_hint_reaches_another_tenant(tmp_path: Path) -> None:
    """An index that forgets the salt shares one tenant's pages with another where ``tenant-salt`` is away, else not."""
    modules = {"prefill": "tests.integration.runtime.unsalted_prefill", "decode": Scene().modules["decode"]}
    found = []
    for rules in (Rules.without("tenant-salt"), Rules.all()):
        folder = tmp_path / f"{len(found)}"
        folder.mkdir()
        async with running_pair(Scene(rules=rules, modules=modules), folder) as pair:
            await ask(pair, PROMPT, "a")
            found.append(await ask(pair, PROMPT, "b"))
    assert found == [96, 0]


async def test_a_shared_page_written_over_ends_all_who_read_it_and_is_shared_no_more(fresh: Pair) -> None:
    """The head of a cached page is another's: the next reader ends, its lot is quarantined, later ones compute."""
    assert await ask(fresh, PROMPT, "a") == 0
    fresh.faults.arm(Fault("spoil", page=0))
    await until("the page is written over", fresh.faults.fired)
    stream = fresh.stream(PROMPT, 8, tenant="a")
    assert await stream.finish() is EndReason.STAMP_MISMATCH
    assert stream.tokens == []
    assert await ask(fresh, PROMPT, "a") == 0
    assert await ask(fresh, PROMPT, "a") == 96
    assert (await fresh.next_beat("prefill"))["quarantined"] == 6
