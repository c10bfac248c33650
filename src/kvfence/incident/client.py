"""Asks the server over HTTP and notes what a client can see: status, text, error frames, times.

Not for: judging an answer (``alarms.py``).
"""

import time
from typing import Any

import httpx
from httpx_sse import EventSource
from msgspec import Struct, json

from kvfence.incident.workload import Ask

TIMEOUT_S = 300.0


class Answer(Struct, frozen=True):
    """What one client saw.

    Units:
        ttft_s: from sending to the first text of a stream, None without one; total_s to the end.
    """

    name: str
    tenant: str
    request_id: str
    status: int
    text: str
    total_s: float
    num_tokens: int = 0
    ttft_s: float | None = None
    error_code: str = ""
    error_frames: int = 0
    was_cut: bool = False


class Door(Struct, frozen=True):
    """How the server is reached. ``keys``: API key by tenant."""

    url: str
    model: str
    keys: dict[str, str]

    def client(self) -> httpx.AsyncClient:
        """Open a client."""
        return httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT_S, limits=httpx.Limits(max_connections=64))


async def ask(client: httpx.AsyncClient, door: Door, request: Ask) -> Answer:
    """Send one request and read its answer, or leave half-way where the request says so."""
    headers = {"authorization": f"Bearer {door.keys[request.tenant]}"}
    body = {
        "model": door.model,
        "prompt": request.token_ids,
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "stream": request.stream,
        "ignore_eos": True,
    }
    began = time.monotonic()
    async with client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        if response.status_code == 200 and request.stream:
            return await _read_stream(response, request, began)
        await response.aread()
        return _read_whole(response, request, began)


async def _read_stream(response: httpx.Response, request: Ask, began: float) -> Answer:
    text, ttft_s, errors, num_pieces = "", None, 0, 0
    async for event in EventSource(response).aiter_sse():
        if event.data == "[DONE]":
            break
        frame = json.decode(event.data)
        errors += "error" in frame
        piece = "".join(choice.get("text") or "" for choice in frame.get("choices", ()))
        num_pieces += 1
        if ttft_s is None:
            ttft_s = time.monotonic() - began
        text += piece
        if request.cut_after and num_pieces >= request.cut_after:
            break
    return Answer(
        request.name,
        request.tenant,
        response.headers.get("x-request-id", ""),
        200,
        text,
        time.monotonic() - began,
        num_tokens=len(request.token_ids),
        ttft_s=ttft_s,
        error_frames=errors,
        was_cut=bool(request.cut_after),
    )


def _read_whole(response: httpx.Response, request: Ask, began: float) -> Answer:
    body: Any = json.decode(response.content)
    text = "".join(choice.get("text") or "" for choice in body.get("choices", ()))
    return Answer(
        request.name,
        request.tenant,
        response.headers.get("x-request-id", ""),
        response.status_code,
        text,
        time.monotonic() - began,
        num_tokens=len(request.token_ids),
        error_code=(body.get("error") or {}).get("code") or "",
    )
