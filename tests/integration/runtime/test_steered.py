"""Sequences with a sampler through a running pair: one that can choose nothing ends alone, and as an error."""

import asyncio

import pytest

from kvfence.core.request import SamplingParams
from kvfence.protocol.messages import EndReason
from tests.integration.runtime.pairs import Pair

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_what_cannot_choose_its_first_token_ends_as_an_error(pair: Pair) -> None:
    """A grammar that no worker can compile costs its own request alone, whose pages return."""
    broken = pair.stream(range(40), 5, sampling=SamplingParams(grammar="no grammar"))
    other = pair.stream(range(50), 5)
    assert await broken.finish() is EndReason.MODEL_ERROR
    assert broken.tokens == []
    assert await other.finish() is EndReason.LENGTH
    assert other.right
    await pair.all_free()


async def test_what_cannot_choose_a_later_token_ends_as_an_error(pair: Pair) -> None:
    """Tokens chosen before have left; then comes an error, no normal end, and others of the same pass go on."""
    sampling = SamplingParams(temperature=0, ignore_eos=True, logprobs=0, min_tokens=4)
    streams = [pair.stream(range(10 * n, 10 * n + 30), 12, sampling=sampling) for n in (1, 2)]
    others = [pair.stream(range(10 * n, 10 * n + 30), 12) for n in (3, 4)]
    ends = await asyncio.gather(*(stream.finish() for stream in (*streams, *others)))
    assert ends == [EndReason.MODEL_ERROR] * 2 + [EndReason.LENGTH] * 2
    assert [len(stream.tokens) for stream in streams] == [4, 4]
    assert all(stream.right for stream in (*streams, *others))
    await pair.all_free()
