"""The cases for SGLang, where both workers get the same body, and a room in which they meet.

Source: public reports for SGLang (issue 30233, pull requests 30325, 35421 and 38935).
"""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from kvfence.probe.handoff.bench import ANSWER_TOKENS, Bench, Case
from kvfence.probe.handoff.errors import NotTried
from kvfence.probe.handoff.pair import Pair, Role
from kvfence.probe.handoff.trial import Reply, Tried

HONEST_TOKENS = 200
BELOW = 16
"""The other tenant's prompt is so much shorter than prefill's limit: so that it is surely taken."""

SEEDED = 2
"""How often: SGLang sorts its free pages once they run short, and then a prompt's pages are the last one's in order."""

ROOM_BITS = 62
PORT = "disaggregation_bootstrap_port"


async def asked(bench: Bench, tokens: Sequence[int]) -> tuple[Reply, Reply]:
    """Ask both workers as the router does; give prefill's answer and decode's."""
    server = await bench.pair.get(Role.PREFILL, "/server_info")
    port = server.get(PORT) if isinstance(server, dict) else None
    host = urlsplit(bench.pair.site.urls[Role.PREFILL]).hostname
    room: dict[str, Any] = {
        "bootstrap_host": host,
        "bootstrap_port": port,
        "bootstrap_room": secrets.randbits(ROOM_BITS),
    }
    answers = (bench.pair.complete(role, tokens, ANSWER_TOKENS, room) for role in Role)
    prefill, decode = await asyncio.gather(*answers)
    return prefill, decode


async def limit_of(pair: Pair, role: Role) -> int | None:
    """Give the longest prompt that a worker takes, as it says; None where it does not."""
    server = await pair.get(role, "/server_info")
    limit = server.get("max_req_input_len") if isinstance(server, dict) else None
    return limit if type(limit) is int and limit > 0 else None


async def honest(bench: Bench) -> Tried:
    """Let both workers answer a prompt that fits both."""
    own, other = await bench.two(min(HONEST_TOKENS, *(limit // 2 for limit in bench.lengths.limits.values())))
    _, reply = await asked(bench, own.tokens)
    return Tried(reply=reply, own=own, other=other)


async def refused_prompt(bench: Bench) -> Tried:
    """A prompt that prefill refuses and decode reserves for, after the other tenant's prompt."""
    limits = bench.lengths.limits
    here, there = limits.get(Role.PREFILL), limits.get(Role.DECODE)
    if here is None or there is None:
        raise NotTried("a worker does not say max_req_input_len at /server_info")
    if here >= there:
        raise NotTried(f"prefill takes {here:,} tokens and decode {there:,}: nothing is refused by prefill alone")
    own, other = await bench.two(here + 1)
    for _ in range(SEEDED):
        before, _ = await asked(bench, other.tokens[:-BELOW])
        if before.status != 200:
            raise NotTried(f"prefill refused the other tenant's prompt ({before.status}): {before.message}")
    prefill, decode = await asked(bench, own.tokens)
    computed = prefill.prompt_tokens if prefill.status == 200 else 0
    return Tried(reply=decode, own=own, other=other, computed=computed)


HONEST = (Case(name="honest", does="a sound hand-off", may="", requests=3, attempt=honest),)

CASES = (
    Case(
        name="refused-prompt",
        does="a prompt that prefill refuses and decode does not, after the other tenant's",
        may="answer out of the other tenant's pages (0.5.19), or hold pages and the client for minutes (0.5.23)",
        requests=6,
        attempt=refused_prompt,
    ),
)
