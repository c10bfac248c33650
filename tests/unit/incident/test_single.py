"""One process with the same mistake refuses correctly, because who reads the pages asks its own error."""

from kvfence.core.ids import RequestId, TenantId
from kvfence.core.request import Request, SamplingParams
from kvfence.incident.simulated import SymbolicExecutor
from kvfence.incident.single import SingleNode
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, TokensOut


def ask(num_tokens: int, max_tokens: int, seed: int = 1) -> Request:
    """Make a request; its seed is its name in the symbolic pages."""
    sampling = SamplingParams(temperature=0, seed=seed)
    return Request(RequestId(f"r{seed}"), TenantId("t"), tuple([1] * num_tokens), max_tokens, sampling)


async def run(node: SingleNode, request: Request) -> list[TokensOut | EndOut]:
    """Run one request to its end."""
    return [event async for event in node.generate(request)]


async def test_what_fits_is_answered_from_its_own_pages() -> None:
    """Tokens, then one end; recycled pages are written before they are read."""
    executor = SymbolicExecutor()
    node = SingleNode(executor, 4, 96)
    for seed in (1, 2):
        events = await run(node, ask(20, 5, seed))
        assert [type(event) for event in events] == [TokensOut] * 5 + [EndOut]
        assert events[-1] == EndOut(EndReason.LENGTH)
    assert executor.foreign == 0
    node.close()


async def test_what_does_not_fit_drains_as_a_placeholder_and_gets_its_error() -> None:
    """No token of the placeholder leaves, and its page is free again."""
    executor = SymbolicExecutor()
    node = SingleNode(executor, 4, 96)
    assert await run(node, ask(33, 5)) == [EndOut(EndReason.DOES_NOT_FIT)]
    assert len(await run(node, ask(27, 5, 2))) == 6
    assert executor.foreign == 0
    node.close()
