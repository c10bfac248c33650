"""A pair that hands over as vLLM's does, on real sockets: blocks used again, a prefix cache, leases; guarded or not.

KV is the tokens themselves; an answer goes on with the last whole line that the worker *reads*, not with the one that
it was sent. Each check is one of ``Checks``; a stock pair has none.
"""

import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from tests.unit.probe.fakes import Fake, Seen, Wire

BLOCK = 32
NUM_BLOCKS = 64
LEASE_S = 1.0

_PIECE = re.compile(r"- |-|\n|[^\s-]+| ")


class Checks(Struct, frozen=True):
    """What decode compares before it takes a hand-off: tokens computed, still leased, whose prompt, used once."""

    count: bool = False
    lease: bool = False
    prompt: bool = False
    once: bool = False


STOCK = Checks()
GUARDED = Checks(True, True, True, True)


class Words:
    """Tokens are pieces of text, numbered as they come."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def tokens(self, text: str) -> list[int]:
        """Give a text's tokens."""
        return [self._number(piece) for piece in _PIECE.findall(text)]

    def _number(self, piece: str) -> int:
        if piece not in self._pieces:
            self._pieces.append(piece)
        return self._pieces.index(piece)

    def text(self, tokens: Sequence[int]) -> str:
        """Give a text again."""
        return "".join(self._pieces[token] for token in tokens)


def line_in(text: str) -> str:
    """Give what goes on with a list: its last whole line, twice."""
    lines = re.findall(r"- ([^\n]+)\n", text)
    return f" {lines[-1]}\n- {lines[-1]}\n" if lines else " so so"


class Lent(Struct):
    """One hand-off that prefill keeps blocks for."""

    prompt: list[int]
    blocks: list[int]
    until_s: float
    used: bool = False
    is_over: bool = False


class Prefill:
    """Prefill's pool: a block that is given back is the first to be used again, and keeps what stood in it."""

    def __init__(self) -> None:
        self.blocks: list[list[int]] = [[0] * BLOCK for _ in range(NUM_BLOCKS)]
        self.free = list(range(NUM_BLOCKS))
        self.lent: dict[str, Lent] = {}
        self.expired = 0

    def write(self, tokens: Sequence[int]) -> list[int]:
        """Take blocks for a prompt, and write it there; what is behind it stays."""
        taken = [self.free.pop(0) for _ in range(-(-len(tokens) // BLOCK))]
        for at, block in enumerate(taken):
            part = tokens[at * BLOCK : (at + 1) * BLOCK]
            self.blocks[block][: len(part)] = part
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """Let blocks be used again, the last given back first."""
        self.free[:0] = blocks

    def reap(self) -> None:
        """End leases that are over."""
        for name, lent in list(self.lent.items()):
            if not lent.is_over and lent.until_s < time.monotonic():
                self.expired += 1
                self.end(name)

    def end(self, name: str) -> None:
        """End a hand-off."""
        lent = self.lent[name]
        if not lent.is_over:
            lent.is_over = True
            self.give_back(lent.blocks)


class VllmPair:
    """Both workers. ``recomputes``: what is refused is computed at decode; else it is 500.

    ``hides``: a hand-off names no block in the open, and decode goes by what prefill has sealed.

    ``says``: how an answer comes out, for models that are no good. ``takes``: decode looks at hand-offs at all.
    ``garbles``: what is not the prompt's own is answered with neither's text; ``mumbles``: hand-offs with no answer.
    """

    def __init__(self, checks: Checks = STOCK, *, recomputes: bool = False, hides: bool = False) -> None:
        self.checks, self.recomputes, self.hides = checks, recomputes, hides
        self.words, self.prefill = Words(), Prefill()
        self.cache: dict[tuple[int, ...], list[int]] = {}
        self.is_alive, self.takes, self.running, self.taken = True, True, 0, 0
        self.leased_s, self.refuses_all = LEASE_S, False
        self.garbles = self.mumbles = False
        self.says = str
        self.at_prefill, self.at_decode = Fake(self._at_prefill), Fake(self._at_decode)

    @property
    def urls(self) -> tuple[str, str]:
        """Give prefill's URL and decode's."""
        return self.at_prefill.url.removesuffix("/v1"), self.at_decode.url.removesuffix("/v1")

    async def _at_prefill(self, seen: Seen, wire: Wire) -> None:
        self.prefill.reap()
        if seen.path == "/tokenize":
            await wire.answer(200, {"tokens": self.words.tokens(seen.body["prompt"])})
        elif seen.path != "/v1/completions":
            await self._about(seen, wire, True)
        elif (seen.body.get("kv_transfer_params") or {}).get("do_remote_decode"):
            await wire.answer(200, self._lend(seen.body["prompt"]))
        else:
            prompt = seen.body["prompt"]
            self.prefill.give_back(self.prefill.write(prompt))
            await wire.answer(200, self._answer(prompt, prompt))

    def _lend(self, prompt: list[int]) -> dict[str, Any]:
        name = f"cmpl-{len(self.prefill.lent)}"
        blocks = self.prefill.write(prompt)
        self.prefill.lent[name] = Lent(prompt, blocks, time.monotonic() + self.leased_s)
        params: dict[str, Any] = {"do_remote_prefill": True, "remote_request_id": name}
        params |= {} if self.hides else {"remote_block_ids": [blocks]}
        return self._answer(prompt, prompt) | {"kv_transfer_params": params}

    async def _at_decode(self, seen: Seen, wire: Wire) -> None:
        if seen.path != "/v1/completions":
            await self._about(seen, wire, self.is_alive)
            return
        prompt, params = seen.body["prompt"], seen.body.get("kv_transfer_params")
        self.prefill.reap()
        if params is not None and self.mumbles:
            await wire.answer(200, b"[]")
        elif params is not None and self.refuses_all:
            await wire.answer(500, _ERROR)
        elif params is None or not self.takes:
            await wire.answer(200, self._answer(self._cached(prompt, None), prompt))
        else:
            await self._take(prompt, params, wire)

    async def _take(self, prompt: list[int], params: dict[str, Any], wire: Wire) -> None:
        name = params["remote_request_id"]
        lent = self.prefill.lent[name]
        remote = lent.blocks if self.hides else params["remote_block_ids"][0]
        holds = (
            (not self.checks.count or len(lent.prompt) == len(prompt))
            and (not self.checks.lease or lent.until_s >= time.monotonic())
            and (not self.checks.prompt or lent.prompt == prompt)
            and (not self.checks.once or not lent.used)
        )
        needed = -(-len(prompt) // BLOCK)
        if not holds and self.recomputes:
            await wire.answer(200, self._answer(self._cached(prompt, None), prompt))
        elif not holds or max(remote) >= NUM_BLOCKS:
            await wire.answer(500, _ERROR)
        elif len(remote) < needed:
            self.is_alive = False
            await wire.answer(500, _ERROR)
        else:
            read = [token for block in remote[-needed:] for token in self.prefill.blocks[block]]
            self.prefill.end(name)
            lent.used = True
            self.taken += len(prompt)
            answer = self._answer(self._cached(prompt, read), prompt)
            if self.garbles and lent.prompt != prompt:
                answer["choices"][0]["text"] = "xx"
            await wire.answer(200, answer)

    def _cached(self, prompt: list[int], read: list[int] | None) -> list[int]:
        """Give what decode reads for a prompt: blocks of its cache, then what was read, or else its own."""
        found: list[int] = []
        for end in range(BLOCK, len(prompt) + 1, BLOCK):
            key = tuple(prompt[:end])
            self.cache.setdefault(key, (read or prompt)[end - BLOCK : end])
            found += self.cache[key]
        return [*found, *(read or prompt)[len(found) : len(prompt) - 1], prompt[-1]]

    def _answer(self, read: Sequence[int], prompt: Sequence[int]) -> dict[str, Any]:
        text = self.says(line_in(self.words.text(read)))
        return {"choices": [{"index": 0, "text": text}], "usage": {"prompt_tokens": len(prompt)}}

    async def _about(self, seen: Seen, wire: Wire, is_up: bool) -> None:
        if seen.path == "/health":
            await wire.answer(200 if is_up else 503, {})
        elif seen.path == "/v1/models":
            await wire.answer(200, {"data": [{"id": "m"}]})
        else:
            lines = (
                f'vllm:cache_config_info{{block_size="{BLOCK}"}} 1.0',
                f"vllm:num_requests_running {self.running}",
                f"vllm:nixl_num_kv_expired_reqs_total {self.prefill.expired}",
                f"vllm:external_prefix_cache_hits_total {self.taken}",
            )
            await wire.answer(200, "".join(f"{line}\n" for line in lines).encode(), content_type="text/plain")


_ERROR = {"error": {"message": "Internal server error", "type": "InternalServerError", "code": 500}}


@asynccontextmanager
async def running(pair: Any) -> AsyncIterator[Any]:
    """Serve both workers of a pair."""
    async with pair.at_prefill, pair.at_decode:
        yield pair
