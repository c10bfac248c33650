"""What a case works with: the pair, two tenants' canaries, and the lengths that matter. And what a case is.

Not for: the cases themselves (``vllm.py``, ``sglang.py``).
"""

from collections.abc import Awaitable, Callable, Iterator

from msgspec import Struct

from kvfence.probe.handoff.canary import Canary, Scribe
from kvfence.probe.handoff.pair import Pair, Role
from kvfence.probe.handoff.trial import Tried

ANSWER_TOKENS = 24
"""Room for two lines: the first may come out in part."""


class Lengths(Struct, frozen=True, kw_only=True):
    """Units: tokens. ``block``: of both pools; ``limits``: the longest prompt that a role takes, where it says so."""

    block: int
    limits: dict[Role, int] = {}


class Bench:
    """One run's workplace. ``lease_s``: prefill keeps pages for a decode that does not come."""

    def __init__(self, pair: Pair, lengths: Lengths, markers: Iterator[str], lease_s: float) -> None:
        self.pair, self.lengths, self.lease_s = pair, lengths, lease_s
        self._scribe = Scribe(pair.tokens_of, markers)

    async def two(self, num_tokens: int) -> tuple[Canary, Canary]:
        """Write prompts of one length for the tenant that asks and for the other one.

        Raises:
            NotTried: no such prompt can be written.
        """
        return await self._scribe.canary(num_tokens), await self._scribe.canary(num_tokens)

    async def alone(self, canary: Canary) -> str:
        """Ask prefill for a whole answer, without any hand-off: what a prompt is really answered with."""
        return (await self.pair.complete(Role.PREFILL, canary.tokens, ANSWER_TOKENS)).text


Try = Callable[[Bench], Awaitable[Tried]]


class Case(Struct, frozen=True, kw_only=True):
    """One thing that can be wrong with a hand-off. ``name``: its flag without the dashes.

    ``does``: what the probe does; ``may``: what an unguarded pair may do then. ``crashes``: that is to end decode.
    ``requests``: how many a try sends at most.
    """

    name: str
    does: str
    may: str
    requests: int
    attempt: Try
    crashes: bool = False
