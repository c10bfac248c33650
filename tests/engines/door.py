"""``kvfence serve --engine`` before a pair of workers, and two tenants who ask there."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct
from processes import free_ports, processes

KEYS = {"ada": "a" * 40, "bob": "b" * 40}
"""API keys, by tenant."""


class Front(Struct, frozen=True):
    """What stands behind the gateway: the engine, its checkpoint and that one's name, URLs of both roles' workers."""

    engine: str
    model: Path
    name: str
    prefills: Sequence[str]
    decodes: Sequence[str]


class Door:
    """The gateway, asked as a tenant."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self._name = url, name

    def ask(self, tenant: str, prompt: Any, max_tokens: int = 8, timeout: float = 600, **more: Any) -> httpx.Response:
        """Ask for a greedy completion."""
        body = {"model": self._name, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
        headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
        return httpx.post(f"{self.url}/v1/completions", json=body, headers=headers, timeout=timeout, trust_env=False)


@contextmanager
def opened(front: Front, logs: Path) -> Iterator[Door]:
    """Start the gateway, wait until it is ready, and end it."""
    keys = logs / "keys"
    keys.write_text("".join(f"{key} {tenant}\n" for tenant, key in KEYS.items()), encoding="ascii")
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "kvfence", "serve", "--engine", front.engine, "--model", str(front.model)]
    command += ["--model-name", front.name, "--port", str(port), "--api-keys", str(keys)]
    for option, urls in (("--prefill", front.prefills), ("--decode", front.decodes)):
        command += [part for each in urls for part in (option, each)]
    url = f"http://127.0.0.1:{port}"
    with processes(logs) as held:
        held.start("gateway", command, {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "OMP_NUM_THREADS": "1"})
        held.wait_until_ready([f"{url}/ready"])
        yield Door(url, front.name)
