"""The stages of one hand-off, and how a victim is brought to each and held there.

The victim's prompt is long and everybody else's is short: holds and hanging writes are for long ones alone.
"""

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from tests.faults.site import Client, Seen
from tests.integration.runtime.faults import Fault, FaultFolder
from tests.integration.runtime.pairs import until

PROMPT = "victim" * 50
PROMPT_TOKENS = len(PROMPT)
MAX_TOKENS = 40
LARGE_PAGES = 12
FILLER = "filler" * 73
"""Leaves decode no room for the victim beside it, and room for short ones."""

Request = tuple[Seen, "asyncio.Task[None]"]


class Victim(Struct):
    """A request that stands at a stage. ``others``: long requests beside it. ``harmed_s``: when it was harmed."""

    request: Request
    others: list[Request] = []
    harmed_s: float = 0.0

    @property
    def seen(self) -> Seen:
        """What its client has seen so far."""
        return self.request[0]


async def offered(client: Client, faults: FaultFolder) -> Victim:
    """Decode has not yet the pages: each decode worker is filled by a long sequence that is held."""
    faults.hold(len(FILLER))
    fillers = []
    for _ in range(2):
        fillers.append(client.start(FILLER, 8))
        await until("a filler has its first token", lambda: fillers[-1][0].text)
    return Victim(client.start(PROMPT, MAX_TOKENS), fillers)


async def computing(client: Client, faults: FaultFolder) -> Victim:
    """Prefill computes the prompt."""
    faults.hold_large("compute", LARGE_PAGES)
    victim = Victim(client.start(PROMPT, MAX_TOKENS))
    await until("prefill computes", lambda: faults.waits("compute"))
    return victim


async def head_landed(client: Client, faults: FaultFolder) -> Victim:
    """A page is torn: its head has landed, its bytes have not."""
    return await _in_transfer(client, faults, Fault("hang", "head", 3, pages_min=LARGE_PAGES))


async def body_landed(client: Client, faults: FaultFolder) -> Victim:
    """A page's bytes have landed, its tail has not."""
    return await _in_transfer(client, faults, Fault("hang", "body", 9, pages_min=LARGE_PAGES))


async def _in_transfer(client: Client, faults: FaultFolder, fault: Fault) -> Victim:
    faults.hang()
    faults.arm(fault)
    victim = Victim(client.start(PROMPT, MAX_TOKENS))
    await until("a write hangs", faults.fired)
    return victim


async def verifying(client: Client, faults: FaultFolder) -> Victim:
    """Prefill has said Sent; decode looks at what landed."""
    faults.hold_large("verify", LARGE_PAGES)
    victim = Victim(client.start(PROMPT, MAX_TOKENS))
    await until("decode verifies", lambda: faults.waits("verify"))
    return victim


async def first_token(client: Client, faults: FaultFolder) -> Victim:
    """The pages are adopted and the first token is out; decode's first pass runs."""
    return await _streaming(client, faults, 1)


async def streaming(client: Client, faults: FaultFolder) -> Victim:
    """Tokens come; a pass runs."""
    return await _streaming(client, faults, 11)


async def _streaming(client: Client, faults: FaultFolder, num_tokens: int) -> Victim:
    faults.hold(PROMPT_TOKENS + num_tokens - 1)
    victim = Victim(client.start(PROMPT, MAX_TOKENS))
    await until("its tokens are out", lambda: len(victim.seen.text) >= num_tokens or victim.seen.error)
    assert len(victim.seen.text) == num_tokens
    return victim


class Stage(Struct, frozen=True):
    """One stage. ``needs_prefill``: the death of its prefill worker costs the request."""

    name: str
    reach: Callable[[Client, FaultFolder], Awaitable[Victim]]
    needs_prefill: bool = True

    @property
    def before_first_token(self) -> bool:
        """Has nothing reached the client yet?"""
        return self.needs_prefill


STAGES = (
    Stage("offered", offered),
    Stage("computing", computing),
    Stage("head-landed", head_landed),
    Stage("body-landed", body_landed),
    Stage("verifying", verifying),
    Stage("first-token", first_token, needs_prefill=False),
    Stage("streaming", streaming, needs_prefill=False),
)
