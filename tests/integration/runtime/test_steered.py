"""Sequences with a sampler, and several together, through a running pair.

One that can choose nothing ends alone, and as an error; several are admitted all or none.
"""

import asyncio
from contextlib import aclosing

import pytest

from kvfence.core.ids import RequestId, TenantId
from kvfence.core.limits import Limits
from kvfence.core.request import Request, SamplingParams
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, TokensOut
from tests.integration.runtime.arithmetic import expected_tokens
from tests.integration.runtime.pairs import GREEDY, Pair, Scene

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCENE = Scene(limits=Limits(queue_tenant_max=4))


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


def several(count: int, name: str) -> list[Request]:
    """Requests of one tenant, told apart by their prompts."""
    prompts = [tuple(range(50 * n, 50 * n + 20)) for n in range(count)]
    return [
        Request(RequestId(f"{name}-{n}"), TenantId("one"), prompt, 8, GREEDY, deadline_s=60.0)
        for n, prompt in enumerate(prompts)
    ]


async def read_together(pair: Pair, requests: list[Request], leave: int | None = None) -> list[list[int | EndReason]]:
    """Read all of them; leave one after its first token. Returns: tokens, and ends, of each."""
    dispatcher = pair.supervisor.dispatcher
    read: list[list[int | EndReason]] = [[] for _ in requests]
    async with aclosing(dispatcher.generate_together(requests)) as items:
        async for index, item in items:
            read[index] += [item.reason] if isinstance(item, EndOut) else list(item.token_ids)
            if isinstance(item, TokensOut) and index == leave:
                dispatcher.leave(requests[index].id)
                leave = None
    return read


async def test_several_are_admitted_all_or_none(pair: Pair) -> None:
    """As many as the tenant may have open go on side by side; one more, and none of them is begun."""
    requests = several(4, "fit")
    assert await read_together(pair, requests) == [
        [*expected_tokens(request.token_ids, 8), EndReason.LENGTH] for request in requests
    ]
    await pair.all_free()
    before = sum(pair.supervisor.dispatcher.decisions.values())
    assert await read_together(pair, several(5, "beyond")) == [[EndReason.QUEUE_FULL], [], [], [], []]
    assert not pair.node().handoffs
    assert sum(pair.supervisor.dispatcher.decisions.values()) == before


async def test_one_of_several_may_be_left(pair: Pair) -> None:
    """The one that was left is cancelled, and the others go on to their ends; all pages return."""
    requests = several(3, "left")
    first, second, third = await read_together(pair, requests, leave=1)
    assert second[-1] is EndReason.CANCELLED
    for read, request in ((first, requests[0]), (third, requests[2])):
        assert read == [*expected_tokens(request.token_ids, 8), EndReason.LENGTH]
    await pair.all_free()
    assert not pair.node().handoffs


async def test_leaving_all_cancels_all(pair: Pair) -> None:
    """Whoever stops reading several has cancelled each of them."""
    requests = several(3, "gone")
    items = pair.supervisor.dispatcher.generate_together(requests)
    await anext(items)
    await items.aclose()
    await pair.all_free()
    assert not pair.node().handoffs
