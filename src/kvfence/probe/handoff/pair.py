"""The two workers, as their proxy sees them: completions with a hand-off's fields, and what they say of themselves.

Bounded in bytes and time; no redirect is followed, no proxy taken from the environment; the key goes into one header.
Not for: what is handed over (``vllm.py``, ``sglang.py``).
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from ssl import SSLContext
from typing import Any

import httpx
from msgspec import Struct, json
from prometheus_client.parser import text_string_to_metric_families

from kvfence.probe.answers import error_text
from kvfence.probe.client import ANSWER_BYTES_MAX, CONNECT_S, TooMuch, bounded_body
from kvfence.probe.door import SECRET_CHARS_MIN, without_secrets
from kvfence.probe.handoff.errors import NotTried
from kvfence.probe.handoff.trial import Reply
from kvfence.probe.refusals import read_refusal

ASK_S = 30.0


class Role(StrEnum):
    """Which worker."""

    PREFILL = "prefill"
    DECODE = "decode"


class Site(Struct, frozen=True, kw_only=True):
    """Where the pair is. ``urls``: by role, without ``/v1``; ``model`` empty: the first that prefill lists."""

    urls: dict[Role, str]
    model: str = ""
    key: str = ""
    verify: SSLContext | bool = True
    timeout_s: float = 330.0

    def __repr__(self) -> str:
        return f"Site({self.urls!r})"


class Pair:
    """Both workers. Counts what it asks them to generate from in ``requests`` and ``tokens``."""

    def __init__(self, site: Site) -> None:
        self.site, self.model = site, site.model
        self.requests = self.tokens = 0
        headers = {"user-agent": "kvfence-probe", "accept-encoding": "identity"}
        self._http = httpx.AsyncClient(
            verify=site.verify,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            headers=headers | ({"authorization": f"Bearer {site.key}"} if site.key else {}),
        )

    async def __aenter__(self) -> "Pair":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def complete(
        self, role: Role, prompt: Sequence[int], max_tokens: int, extra: Mapping[str, Any] = {}
    ) -> Reply:
        """Ask one worker for a greedy completion of a prompt in tokens."""
        self.requests += 1
        self.tokens += len(prompt) + max_tokens
        body = {"model": self.model, "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, **extra}
        began_s = time.monotonic()
        status, frame, problem = await self._send("POST", role, "/v1/completions", body, self.site.timeout_s)
        ms = 1000 * (time.monotonic() - began_s)
        if problem or status != 200 or not isinstance(frame, dict):
            said = read_refusal(error_text(frame), mask=self._masked).message
            unread = None if status == 200 else status
            return Reply(status=unread, ms=ms, message=problem or said or "an answer that cannot be read")
        return _read(frame, ms, self._masked_answer)

    async def tokens_of(self, text: str, begins: bool) -> list[int]:
        """Give a text's tokens, as prefill counts them.

        Raises:
            NotTried: it does not say.
        """
        body = {"model": self.model, "prompt": text, "add_special_tokens": begins}
        _, frame, _ = await self._send("POST", Role.PREFILL, "/tokenize", body)
        found = frame.get("tokens") if isinstance(frame, dict) else None
        if not isinstance(found, list) or not found or not all(type(each) is int for each in found):
            raise NotTried("prefill does not give tokens at /tokenize, so no prompt of an exact length can be made")
        return found

    async def models(self) -> list[str]:
        """Give the models that prefill lists; none where it does not answer."""
        _, frame, _ = await self._send("GET", Role.PREFILL, "/v1/models")
        found = frame.get("data") if isinstance(frame, dict) else None
        return [str(each["id"]) for each in found or [] if isinstance(each, dict) and each.get("id")]

    async def get(self, role: Role, path: str) -> Any:
        """Give the JSON at a path; None where there is none."""
        status, frame, _ = await self._send("GET", role, path)
        return frame if status == 200 else None

    async def is_up(self, role: Role) -> bool:
        """Does it answer at /health with 200?"""
        return (await self._send("GET", role, "/health"))[0] == 200

    async def metrics(self, role: Role) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Give what /metrics says: by name, labels and values; nothing where it cannot be read."""
        _, text, _ = await self._send("GET", role, "/metrics")
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        try:
            for family in text_string_to_metric_families(text if isinstance(text, str) else ""):
                for sample in family.samples:
                    found.setdefault(sample.name, []).append((sample.labels, sample.value))
        except ValueError:
            return {}
        return found

    async def _send(
        self, method: str, role: Role, path: str, body: Any = None, limit_s: float = ASK_S
    ) -> tuple[int | None, Any, str]:
        """Give status, JSON or text, and why there is no answer."""
        content = None if body is None else json.encode(body)
        headers = {} if body is None else {"content-type": "application/json"}
        url = self.site.urls[role] + path
        try:
            async with asyncio.timeout(limit_s):
                request = self._http.build_request(method, url, content=content, headers=headers)
                response = await self._http.send(request, stream=True)
                try:
                    raw = await bounded_body(response, ANSWER_BYTES_MAX)
                finally:
                    await response.aclose()
        except (TimeoutError, httpx.TimeoutException):
            return None, None, f"no answer from {role} within {limit_s:.0f} s"
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, TooMuch, OSError) as error:
            return None, None, f"no answer from {role}: {type(error).__name__}"
        try:
            return response.status_code, json.decode(raw), ""
        except (ValueError, RecursionError):
            return response.status_code, raw.decode("utf-8", "replace"), ""

    def _masked(self, text: str) -> str:
        return without_secrets(text, [self.site.key])

    def _masked_answer(self, text: str) -> str:
        return without_secrets(text, [self.site.key], SECRET_CHARS_MIN)


def _read(frame: dict[str, Any], ms: float, masked: Any) -> Reply:
    choices, usage, params = frame.get("choices"), frame.get("usage"), frame.get("kv_transfer_params")
    first = choices[0] if isinstance(choices, list) and choices else None
    text = first.get("text") if isinstance(first, dict) else None
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if not isinstance(text, str):
        return Reply(status=None, ms=ms, message="an answer without a text")
    return Reply(
        status=200,
        ms=ms,
        text=masked(text),
        prompt_tokens=count if type(count) is int else None,
        params=params if isinstance(params, dict) else None,
    )
