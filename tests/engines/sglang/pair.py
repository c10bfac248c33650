"""A real SGLang pair on this machine without a GPU: prefill, decode and the project's own router in front, on loopback.

    python pair.py --release 0.5.19 [--prefill-tokens 1024 --decode-tokens 1536]

starts one, prints its URL and keeps it until Ctrl-C. Every process hangs on this one: its group is ended when the pair
is, and logs stay in a folder. The engine is as shipped but for ``cpu_lines.py`` and ``shim/``.
"""

import argparse
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import httpx
from msgspec import Struct
from msgspec.structs import replace

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from processes import free_ports, processes  # noqa: E402

KEPT_S = "600"
"""The router keeps connections longer than the engines' five seconds, and does not ask again on a new one: of a request
that meets a closing one, decode waits for a prefill that was never asked."""

NAME = "smol"
"""The checkpoint's, for clients."""

OFF = MappingProxyType({"KVFENCE_GUARD": "off"})


class Sizes(Struct, frozen=True):
    """Units: tokens. The prefill pool is below the context, and below decode's."""

    context: int = 8192
    prefill: int = 1024
    decode: int = 1536
    page: int = 1


class Site(Struct, frozen=True):
    """Where the engine lies: its interpreter, the folder with one folder a release, the checkpoint.

    ``guard``: variables of the guard, which is installed there too; off where nothing is said. ``more``: on PYTHONPATH.
    """

    python: Path
    releases: Path
    model: Path
    guard: Mapping[str, str] = OFF
    more: tuple[Path, ...] = ()


class Pair(Struct, frozen=True):
    """A running pair: URLs of the front door and of both roles, and where their logs are.

    ``meeting``: the port where the roles meet. ``groups``: the process group of each role and of the router.
    ``guard``: the variables that both roles were started with.
    ``restart``: starts a role anew in its place, with a guard as before or another, and waits until it answers.
    """

    url: str
    prefill: str
    decode: str
    logs: Path
    meeting: int
    groups: Mapping[str, int]
    guard: Mapping[str, str]
    restart: Callable[..., None]


def environment(site: Site, release: str) -> dict[str, str]:
    """Give what the engine's processes find: one release, the stand-in for its kernels, TCP on loopback."""
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        **site.guard,
        "PYTHONPATH": ":".join(map(str, (site.releases / release, HERE / "shim", *site.more))),
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_HOST_IP": "127.0.0.1",
        "SGLANG_TIMEOUT_KEEP_ALIVE": KEPT_S,
        "MC_FORCE_TCP": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def engine_command(site: Site, sizes: Sizes, role: str, ports: tuple[int, int]) -> list[str]:
    """Give one role's command line. ``ports``: its own, and the one where prefill and decode meet."""
    command = [str(site.python), "-m", "sglang.launch_server", "--model-path", str(site.model)]
    command += ["--served-model-name", NAME, "--device", "cpu", "--attention-backend", "torch_native"]
    command += ["--dtype", "float32", "--host", "127.0.0.1", "--port", str(ports[0]), "--page-size", str(sizes.page)]
    command += ["--context-length", str(sizes.context), "--max-running-requests", "8", "--disable-overlap-schedule"]
    command += ["--disable-cuda-graph", "--enable-metrics", "--skip-server-warmup", "--disaggregation-mode", role]
    command += ["--disaggregation-transfer-backend", "mooncake_tcp", "--disaggregation-bootstrap-port", str(ports[1])]
    if role == "prefill":
        return [*command, "--max-total-tokens", str(sizes.prefill)]
    command += ["--max-total-tokens", str(sizes.decode), "--num-reserved-decode-tokens", "64"]
    return [*command, "--disaggregation-decode-retraction-backup", "cpu_tensor"]


def router_command(site: Site, ports: list[int]) -> list[str]:
    """Give the router's. ``ports``: of prefill, decode, the meeting point, the front door, the router's metrics."""
    prefill, decode, meeting, front, metrics = map(str, ports)
    command = [str(site.python), "-m", "sglang_router.launch_router", "--pd-disaggregation"]
    command += ["--prefill", f"http://127.0.0.1:{prefill}", meeting, "--decode", f"http://127.0.0.1:{decode}"]
    command += ["--host", "127.0.0.1", "--port", front, "--prometheus-port", metrics, "--policy", "round_robin"]
    command += ["--health-check-interval-secs", "15", "--health-check-timeout-secs", "60"]  # prefill may be that busy
    command += ["--health-success-threshold", "1"]
    return [*command, "--disable-retries", "--disable-circuit-breaker"]


@contextmanager
def running(site: Site, release: str, sizes: Sizes, logs: Path) -> Iterator[Pair]:
    """Start a pair and its router, wait until they answer, and end them with all their children."""
    ports = free_ports(5)
    meeting, front = ports[2:4]
    at = dict(zip(("prefill", "decode"), ports, strict=False))
    urls = [f"http://127.0.0.1:{port}" for port in (front, *at.values())]
    with processes(logs) as held:

        def start(role: str, guard: Mapping[str, str]) -> None:
            command = engine_command(site, sizes, role, (at[role], meeting))
            held.start(role, command, environment(replace(site, guard=guard), release))

        def restart(role: str, guard: Mapping[str, str] = site.guard) -> None:
            held.end(role)
            start(role, guard)
            held.wait_until_ready([f"http://127.0.0.1:{at[role]}/health"])
            groups[role] = held.group(role)

        for role in at:
            start(role, site.guard)
        held.wait_until_ready([f"{url}/health" for url in urls[1:]])
        held.start("router", router_command(site, ports), environment(site, release))
        held.wait_until_ready([f"{urls[0]}/v1/models"])
        groups = {name: held.group(name) for name in (*at, "router")}
        yield Pair(*urls, logs, meeting, groups, site.guard, restart)


def ask(pair: Pair, content: str, max_tokens: int, timeout_s: float = 600) -> httpx.Response:
    """Ask the front door one greedy chat question."""
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    return httpx.post(f"{pair.url}/v1/chat/completions", json=body, timeout=timeout_s, trust_env=False)


def ask_both(pair: Pair, room: int, prefill: dict[str, object], decode: dict[str, object]) -> list[httpx.Response]:
    """Ask both roles themselves in one room, each its own question; give prefill's answer and decode's."""
    meeting = {"bootstrap_host": "127.0.0.1", "bootstrap_port": pair.meeting, "bootstrap_room": room}

    def one(url: str, body: dict[str, object]) -> httpx.Response:
        return httpx.post(f"{url}/generate", json={**body, **meeting}, timeout=600, trust_env=False)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, (pair.prefill, pair.decode), (prefill, decode)))


def main() -> None:
    """Keep a pair up for whoever wants to look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--releases", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--release", default="0.5.19")
    parser.add_argument("--prefill-tokens", type=int, default=Sizes().prefill)
    parser.add_argument("--decode-tokens", type=int, default=Sizes().decode)
    parser.add_argument("--guard", choices=("off", "observe", "enforce"), default="off")
    given = parser.parse_args()
    logs = Path(tempfile.mkdtemp(prefix=f"sglang-{given.release}-{secrets.token_hex(2)}-"))
    sizes = Sizes(prefill=given.prefill_tokens, decode=given.decode_tokens)
    guard = {"KVFENCE_GUARD": given.guard, "KVFENCE_GUARD_KEY": secrets.token_hex(32)}
    site = Site(given.python.absolute(), given.releases.absolute(), given.model.absolute(), guard)
    with running(site, given.release, sizes, logs) as pair:
        sys.stderr.write(f"SGLang {given.release} answers at {pair.url}/v1; logs in {pair.logs}; Ctrl-C ends it\n")
        signal.pause()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(0)
