"""The main promise of the fenced path: the tokens that leave are those of transformers' own ``generate``."""

import asyncio
from pathlib import Path

import pytest

from kvfence.core.settings import Role
from kvfence.models.bundled import embedded_model
from kvfence.models.checkpoint import read_facts
from kvfence.models.toy import write_toy_checkpoint
from kvfence.protocol.messages import EndReason
from kvfence.runtime.life import WORKER_MODULES
from tests.integration.runtime.pairs import Pair, Scene, Stream, running_pair

LENGTHS = [1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 40, 48, 63, 64, 65, 7, 20, 26, 90, 111, 128, 129, 4]
LENGTHS += [12, 24, 36, 44, 52, 72, 80, 96]
NUM_NEW = 8
NUM_AGAIN = 6
CONCURRENCY = 16
PAGES: dict[Role, int] = {"prefill": 96, "decode": 160}


def toy(folder: Path) -> Path:
    """A toy checkpoint."""
    return write_toy_checkpoint(folder / "toy")


def embedded(_: Path) -> Path:
    """The embedded model, fetched and converted once."""
    return embedded_model(print)


async def answers(pair: Pair, prompts: list[list[int]]) -> list[list[int]]:
    """Have all prompts answered, at most ``CONCURRENCY`` at a time."""
    room = asyncio.Semaphore(CONCURRENCY)

    async def one(prompt: list[int]) -> list[int]:
        async with room:
            stream: Stream = pair.stream(prompt, NUM_NEW)
            assert await stream.finish(120.0) is EndReason.LENGTH
            return stream.tokens

    return await asyncio.gather(*map(one, prompts))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("checkpoint", [toy, pytest.param(embedded, marks=pytest.mark.embedded)])
async def test_greedy_tokens_equal_generate(checkpoint, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """32 prompts of mixed length, 16 at a time through prefill, transfer and decode, in float32; some of them again,
    now that the pages of their first tokens lie there."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.paged_runner import random_prompts, reference

    path = checkpoint(tmp_path)
    prompts = random_prompts(LENGTHS, read_facts(path).vocab_size)
    scene = Scene(prefill_pages=PAGES["prefill"], decode_pages=PAGES["decode"], modules=WORKER_MODULES, dtype="float32")
    (tmp_path / "pair").mkdir()
    async with running_pair(scene, tmp_path / "pair", str(path)) as pair:
        tokens = await answers(pair, prompts)
        again = await answers(pair, prompts[-NUM_AGAIN:])
        await pair.all_free()
        outcomes = pair.life("decode").beat.outcomes
        assert outcomes["length"] == len(prompts) + NUM_AGAIN
        assert pair.life("prefill").beat.prefixes["hit_tokens"] > 100
    assert again == tokens[-NUM_AGAIN:]
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    assert tokens == await asyncio.to_thread(reference, model, prompts, NUM_NEW)
    assert len({tuple(answer) for answer in tokens}) > 20
