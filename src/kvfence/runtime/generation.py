"""The seam between HTTP and workers: ask for a generation, receive tokens, then exactly one end.

Not for: HTTP shapes (``gateway/``) or deciding who owns a page (``protocol/``).
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Protocol

from msgspec import Struct

from kvfence.core.ids import RequestId
from kvfence.core.request import Request, TokenLogprob, without_content
from kvfence.protocol.admission import Capacity, Fit
from kvfence.protocol.messages import EndReason


class TokensOut(Struct, frozen=True):
    """Tokens that have left decode, in order. Never logged. ``logprobs``: one for each, or none.

    ``num_cached``: with the first, tokens of the prompt that were not computed again.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    num_cached: int = 0

    __repr__ = without_content


class EngineWords(Struct, frozen=True):
    """What another engine said of a failure, for its client alone: it may quote the request. ``status``: HTTP's."""

    status: int
    message: str

    __repr__ = without_content


class EndOut(Struct, frozen=True):
    """The last thing of every generation.

    ``sums``: for DOES_NOT_FIT, the arithmetic of every limit (the failing ones have ``holds`` False).
    ``retry_after_s``: when asking again makes sense; 0 where it never does. ``words``: an engine's own, if any.
    """

    reason: EndReason
    sums: tuple[Fit, ...] = ()
    retry_after_s: int = 0
    words: EngineWords | None = None


class WorkerState(Struct, frozen=True):
    """One worker as ``/health`` shows it. ``worker``: the name of its slot."""

    role: str
    incarnation: str
    state: str
    pool_tokens: int
    num_restarts: int
    worker: str = ""


class Generations(Protocol):
    """What the gateway needs of the workers. Implemented by ``runtime/dispatcher.py`` and by fakes in tests."""

    @property
    def capacity(self) -> Capacity:
        """Context and the smallest pool of each role."""
        ...

    @property
    def draining(self) -> bool:
        """Is the server about to end, so that no request is admitted any more?"""
        ...

    def workers(self) -> tuple[WorkerState, ...]:
        """Every worker, ready or not."""
        ...

    async def generate(self, request: Request) -> AsyncIterator[TokensOut | EndOut]:
        """Yield tokens, then one ``EndOut``; it starts when first asked. Closing it early cancels the request."""
        async with aclosing(self.generate_together((request,))) as items:
            async for _, item in items:
                yield item

    def generate_together(self, requests: Sequence[Request]) -> AsyncGenerator[tuple[int, TokensOut | EndOut], None]:
        """Generate for several requests, admitted all or none; each item with the index of its request.

        Every request gets one ``EndOut``, or all of them one together, with index 0, where they are refused.
        """
        ...

    def leave(self, request: RequestId) -> None:
        """Cancel one request of several; nothing more of it is yielded but, perhaps, its end."""
        ...
