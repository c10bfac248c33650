"""A prefill that says it could take more than it can: the worker itself, behind a server that changes one answer.

A gateway learns a worker's limits by looking. Between two looks they may be others, and a fleet may be configured
wrongly; then what a gateway lets through must be caught by comparing answers. Here that is so at every request.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
from msgspec import Struct

INFO, GENERATE = "/server_info", "/generate"


class Misstated(Struct):
    """``url``: where it is asked. ``counts``: of each question, its tokens, and how many prefill says it had."""

    url: str
    counts: list[tuple[int, int]]


@contextmanager
def misstating(prefill: str, limits: Mapping[str, Any]) -> Iterator[Misstated]:
    """Stand before a prefill; ``limits``: what its ``/server_info`` says instead."""
    told: list[tuple[int, int]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            self._pass(None)

        def do_POST(self) -> None:
            self._pass(self.rfile.read(int(self.headers.get("content-length", 0))))

        def _pass(self, body: bytes | None) -> None:
            headers = {"content-type": "application/json"} if body else {}
            url = prefill + self.path
            answer = httpx.request(self.command, url, content=body, headers=headers, timeout=600, trust_env=False)
            content = answer.content
            if self.path == INFO and answer.status_code == 200:
                content = json.dumps({**answer.json(), **limits}).encode()
            if self.path == GENERATE and body and answer.status_code == 200:
                told.append((len(json.loads(body)["input_ids"]), answer.json()["meta_info"]["prompt_tokens"]))
            self.send_response(answer.status_code)
            self.send_header("content-type", answer.headers.get("content-type", "text/plain"))
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield Misstated(f"http://127.0.0.1:{server.server_port}", told)
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
