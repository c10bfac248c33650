"""A pair that meets in rooms as SGLang's does, on real sockets: prefill's pool is the smaller one.

Decode's slots keep what they held. ``Release``: what prefill does with a prompt that it refuses.
"""

from enum import StrEnum
from typing import Any

from tests.unit.probe.fakes import Fake, Seen, Wire
from tests.unit.probe.handoff.vllm_pair import Words, line_in

PREFILL_LIMIT, DECODE_LIMIT = 120, 200


class Release(StrEnum):
    """0.5.19 hands over one token of it; a later one refuses and lets decode run out of time; guarded: both refuse."""

    STUB = "stub"
    SILENT = "silent"
    GUARDED = "guarded"


class SglangPair:
    """Both workers."""

    def __init__(self, release: Release, decode_limit: int = DECODE_LIMIT) -> None:
        self.release, self.words = release, Words()
        self.limits = {"prefill": PREFILL_LIMIT, "decode": decode_limit}
        self.slots = [0] * DECODE_LIMIT
        self.at_prefill = Fake(lambda seen, wire: self._at("prefill", seen, wire))
        self.at_decode = Fake(lambda seen, wire: self._at("decode", seen, wire))

    @property
    def urls(self) -> tuple[str, str]:
        """Give prefill's URL and decode's."""
        return self.at_prefill.url.removesuffix("/v1"), self.at_decode.url.removesuffix("/v1")

    async def _at(self, role: str, seen: Seen, wire: Wire) -> None:
        if seen.path == "/tokenize":
            await wire.answer(200, {"tokens": self.words.tokens(seen.body["prompt"])})
        elif seen.path == "/server_info":
            port = {"disaggregation_bootstrap_port": 8998} if role == "prefill" else {}
            await wire.answer(200, {"max_req_input_len": self.limits[role]} | port)
        elif seen.path == "/v1/completions":
            await self._complete(role, seen.body, wire)
        else:
            await wire.answer(200, {"data": [{"id": "m"}]})

    async def _complete(self, role: str, body: dict[str, Any], wire: Wire) -> None:
        prompt: list[int] = body["prompt"]
        refused = len(prompt) >= self.limits["prefill"]
        assert body.get("bootstrap_room") is not None or not refused
        stub = refused and self.release is Release.STUB
        if refused and not stub:
            late = role == "decode" and self.release is Release.SILENT
            await wire.answer(500 if late else 400, {"object": "error", "message": "Input length", "code": 400})
            return
        sent = prompt[:1] if stub else prompt
        if role == "prefill":
            await wire.answer(200, self._answer(sent, sent))
            return
        self.slots[: len(sent)] = sent
        await wire.answer(200, self._answer([*self.slots[: len(prompt) - 1], prompt[-1]], prompt))

    def _answer(self, read: list[int], prompt: list[int]) -> dict[str, Any]:
        return {
            "choices": [{"index": 0, "text": line_in(self.words.text(read))}],
            "usage": {"prompt_tokens": len(prompt)},
        }
