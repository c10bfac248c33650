"""Stands where ``vllm`` stands: takes its command line, needs the guard's variables, answers as a guarded role does.

fake_vllm.py serve MODEL --port 8101 --kv-transfer-config '{...}' ...
"""

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path

import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tests.integration.engines.fakes import Rooms, Script, VllmFake

ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


class Guarded(VllmFake):
    """A role that says that its guard is on."""

    async def metrics(self, request: Request) -> Response:
        """The engine's own page, and the guard's line."""
        own = (await super().metrics(request)).body
        labels = f'role="{self.script.role}",mode="{os.environ["KVFENCE_GUARD"]}",key_id="{key_id()}",version="1"'
        return PlainTextResponse(bytes(own) + f"kvfence:guard_active{{{labels}}} 1.0\n".encode())


def key_id() -> str:
    """Name the key that the file holds."""
    key = Path(os.environ["KVFENCE_GUARD_KEY_FILE"]).read_text()
    if len(key) != 64:
        sys.exit("the key has another length")
    return hashlib.sha256(key.encode()).hexdigest()[:8]


async def health(_: Request) -> Response:
    """200."""
    return Response()


def main() -> None:
    """Serve one role."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["serve"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--kv-transfer-config", type=json.loads, required=True)
    given, _ = parser.parse_known_args()
    config = given.kv_transfer_config
    if config["kv_connector_module_path"] != "kvfence.guard.vllm":
        sys.exit("no guard in the configuration")
    app = Guarded(Script(ROLES[config["kv_role"]], limit=512), Rooms()).app()
    app.routes.append(Route("/health", health))
    uvicorn.run(app, host=given.host, port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
