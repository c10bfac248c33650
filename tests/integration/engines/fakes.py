"""Engines that answer as SGLang and vLLM do, over real HTTP on loopback, with gates where a test wants to look.

Bodies have the shapes that the real ones were recorded with; what a pair would leak is a word of its own.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from kvfence.gateway.server import bind, serving

EOS = 256
ANSWER = [*b"good", EOS]
LEAK = [*b"MARIA", EOS]
REFUSAL = (
    "Input length (24 tokens) exceeds the maximum allowed length (18 tokens). Use a shorter input or enable "
    "--allow-auto-truncate."
)


class Script:
    """What one worker does, and what it saw. Every gate is open unless a test closes it."""

    def __init__(self, role: str, pool: int = 4096, limit: int = 0) -> None:
        self.role, self.pool, self.limit = role, pool, limit or pool - 6
        self.says_limit = self.limit
        self.before_answer, self.before_end = asyncio.Event(), asyncio.Event()
        self.before_answer.set()
        self.before_end.set()
        self.bodies: list[dict[str, Any]] = []
        self.asked = asyncio.Event()
        self.closed: list[str] = []
        self.closing = asyncio.Event()
        self.course: list[str] = []
        self.aborted: set[str] = set()
        self.answered = 0
        self.status = 200
        self.words = "Internal server error"
        self.silent_refusal = False
        self.tokens = ANSWER
        self.cut_after: int | None = None
        self.count: int | None = None
        self.moved: int | None = None
        self.gives_params = True
        self.reads: list[int] | None = None
        self.before_look = asyncio.Event()
        self.before_look.set()

    def note(self, body: dict[str, Any]) -> None:
        self.bodies.append(body)
        self.asked.set()

    def note_closed(self, when: str) -> None:
        self.closed.append(when)
        self.course.append("closed")
        self.closing.set()


class Rooms:
    """Where prefill and decode of one pair meet: transfers that have ended, and rooms that decode has come to."""

    def __init__(self) -> None:
        self.ended: dict[int, asyncio.Event] = {}
        self.met: dict[int, asyncio.Event] = {}

    def of(self, room: int) -> asyncio.Event:
        return self.ended.setdefault(room, asyncio.Event())

    def meeting(self, room: int) -> asyncio.Event:
        return self.met.setdefault(room, asyncio.Event())


def tokenize_route(script: Script) -> Route:
    """Say how a worker reads a text: as the script says, or not at all."""

    async def tokenize(_: Request) -> Response:
        return JSONResponse({"tokens": script.reads, "count": 3, "max_model_len": 8192}, 200 if script.reads else 404)

    return Route("/tokenize", tokenize, methods=["POST"])


async def watch(request: Request, script: Script, state: Callable[[], str]) -> None:
    """Note when whoever asked closes the connection, and how far the hand-off was then."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    script.note_closed(state())


async def held(request: Request, script: Script, state: str) -> None:
    """Keep an answer back as long as the script says, and note whoever leaves meanwhile."""
    watching = asyncio.create_task(watch(request, script, lambda: state))
    try:
        await script.before_answer.wait()
    finally:
        watching.cancel()


# ---- SGLang ----------------------------------------------------------------------------------------------------------


class SglangFake:
    """One role of SGLang: ``/server_info`` and ``/generate``."""

    def __init__(self, script: Script, rooms: Rooms) -> None:
        self.script, self.rooms = script, rooms

    async def info(self, _: Request) -> Response:
        await self.script.before_look.wait()
        return JSONResponse(
            {
                "model_path": "/models/smol",
                "served_model_name": "smol",
                "version": "0.5.19",
                "page_size": 1,
                "context_length": 8192,
                "max_total_tokens": None,
                "disaggregation_mode": self.script.role,
                "disaggregation_bootstrap_port": 38998,
                "num_reserved_decode_tokens": 64,
                "max_req_input_len": self.script.says_limit,
                "internal_states": [{"memory_usage": {"token_capacity": self.script.pool}}],
            }
        )

    async def prefill(self, request: Request) -> Response:
        body = await request.json()
        self.script.note(body)
        num_prompt = len(body["input_ids"])
        await held(request, self.script, "in transfer")
        self.script.answered += 1
        if self.script.status != 200:
            return JSONResponse({"error": {"message": self.script.words}}, self.script.status)
        if num_prompt >= self.script.limit and not self.script.silent_refusal:
            return JSONResponse({"error": {"message": REFUSAL}}, 400)
        count = 1 if num_prompt >= self.script.limit else num_prompt
        await self.rooms.meeting(body["bootstrap_room"]).wait()
        self.rooms.of(body["bootstrap_room"]).set()
        meta = {
            "id": body["rid"],
            "finish_reason": {"type": "length", "length": 0},
            "prompt_tokens": count,
            "completion_tokens": 1,
            "cached_tokens": 3,
        }
        return JSONResponse({"text": "-", "output_ids": self.script.tokens[:1], "meta_info": meta})

    async def decode(self, request: Request) -> Response:
        try:
            body = await request.json()
        except ClientDisconnect:
            self.script.note_closed("before it was read")
            return Response()
        self.script.note(body)
        self.rooms.meeting(body["bootstrap_room"]).set()
        if self.script.status != 200:
            return JSONResponse({"error": {"message": self.script.words}}, self.script.status)
        return StreamingResponse(self.events(body), media_type="text/event-stream")

    async def events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        room, ended = self.rooms.of(body["bootstrap_room"]), False
        num_prompt = self.script.count or len(body["input_ids"])
        try:
            await room.wait()
            await self.script.before_answer.wait()
            for number in range(1, len(self.script.tokens) + 1):
                last = number == len(self.script.tokens)
                if self.script.cut_after == number - 1:
                    raise ConnectionError
                if last:
                    await self.script.before_end.wait()
                finish = {"type": "stop", "matched": EOS} if last else None
                meta = {
                    "id": body["rid"],
                    "finish_reason": finish,
                    "prompt_tokens": num_prompt,
                    "completion_tokens": number,
                    "cached_tokens": 0,
                    "output_token_logprobs": [[-0.5, token, None] for token in self.script.tokens[:number]],
                }
                chunk = {"text": None, "output_ids": self.script.tokens[:number], "meta_info": meta}
                yield f"data: {json.dumps(chunk)}\n\n"
            yield "data: [DONE]\n\n"
            ended = True
        finally:
            if not ended:
                self.script.note_closed("settled" if room.is_set() else "in transfer")
                if body["rid"] not in self.script.aborted:  # as 0.5.19 does with a stream that is closed
                    self.script.course.append("generates on")

    async def abort(self, request: Request) -> Response:
        name = (await request.json())["rid"]
        self.script.aborted.add(name)
        self.script.course.append(f"abort {name == self.script.bodies[-1]['rid']}")
        return Response()

    def app(self) -> Starlette:
        generate = self.prefill if self.script.role == "prefill" else self.decode
        routes = [
            Route("/abort_request", self.abort, methods=["POST"]),
            Route("/server_info", self.info),
            Route("/generate", generate, methods=["POST"]),
        ]
        return Starlette(routes=[*routes, tokenize_route(self.script)])


# ---- vLLM ------------------------------------------------------------------------------------------------------------


class VllmFake:
    """One role of vLLM: ``/v1/models``, ``/metrics`` and ``/v1/completions``."""

    def __init__(self, script: Script, rooms: Rooms) -> None:
        self.script, self.rooms = script, rooms

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "smol", "max_model_len": self.script.says_limit}]})

    async def metrics(self, _: Request) -> Response:
        blocks = self.script.pool // 16 + 1
        return PlainTextResponse(
            "# TYPE vllm:cache_config_info gauge\n"
            f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}",enable_prefix_caching="True"}} 1.0\n'
        )

    async def prefill(self, request: Request) -> Response:
        body = await request.json()
        self.script.note(body)
        await held(request, self.script, "before transfer")
        self.script.answered += 1
        if self.script.status != 200:
            error = {"message": self.script.words, "type": "BadRequestError", "param": None, "code": self.script.status}
            return JSONResponse({"error": error}, self.script.status)
        num_prompt = self.script.count or len(body["prompt"])
        params = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1]],
            "remote_engine_id": "0b0c",
            "remote_request_id": "cmpl-1",
            "remote_host": "127.0.0.1",
            "remote_port": 5601,
            "tp_size": 1,
            "remote_num_tokens": self.script.moved if self.script.moved is not None else num_prompt,
        }
        answer = {
            "id": "cmpl-1",
            "choices": [{"index": 0, "text": "-", "finish_reason": "length", "token_ids": self.script.tokens[:1]}],
            "usage": {"prompt_tokens": num_prompt, "completion_tokens": 1, "total_tokens": num_prompt + 1},
            "kv_transfer_params": params if self.script.gives_params else None,
        }
        return JSONResponse(answer)

    async def decode(self, request: Request) -> Response:
        body = await request.json()
        self.script.note(body)
        if self.script.status != 200:
            error = {
                "message": self.script.words,
                "type": "InternalServerError",
                "param": None,
                "code": self.script.status,
            }
            return JSONResponse({"error": error}, self.script.status)
        return StreamingResponse(self.events(body), media_type="text/event-stream")

    async def events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        begun = ended = False
        num_prompt = self.script.count or len(body["prompt"])
        try:
            await self.script.before_answer.wait()
            for number, token in enumerate(self.script.tokens, start=1):
                last = number == len(self.script.tokens)
                if self.script.cut_after == number - 1:
                    raise ConnectionError
                if last:
                    await self.script.before_end.wait()
                choice = {"index": 0, "text": "", "token_ids": [token], "finish_reason": "stop" if last else None}
                usage = {"prompt_tokens": num_prompt, "completion_tokens": number, "total_tokens": num_prompt + number}
                yield f"data: {json.dumps({'id': 'cmpl-2', 'choices': [choice], 'usage': usage})}\n\n"
                begun = True
            if begun:
                yield f"data: {json.dumps({'id': 'cmpl-2', 'choices': [], 'usage': usage})}\n\n"
            yield "data: [DONE]\n\n"
            ended = True
        finally:
            if not ended:
                self.script.note_closed("settled" if begun else "in transfer")

    def app(self) -> Starlette:
        generate = self.prefill if self.script.role == "prefill" else self.decode
        routes = [
            Route("/v1/models", self.models),
            Route("/metrics", self.metrics),
            Route("/v1/completions", generate, methods=["POST"]),
        ]
        return Starlette(routes=[*routes, tokenize_route(self.script)])


@asynccontextmanager
async def listening(app: Starlette) -> AsyncIterator[str]:
    """Serve an app on a free port of loopback. Returns: its URL."""
    async with serving(app, bind("127.0.0.1", 0), stop_timeout_s=1) as address:
        yield address.url
