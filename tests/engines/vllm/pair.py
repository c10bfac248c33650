"""A real vLLM pair on this machine without a GPU: prefill and decode over NIXL, on loopback.

    python pair.py --python PYTHON --model FOLDER [--guard enforce] [--start prefill decode]

starts them, prints their URLs and keeps them until Ctrl-C. There is no proxy between: ``handed_off`` is one, in six
lines, so that a test can hold a hand-off back, change it and use it again. Every process hangs on this one.
"""

import argparse
import json
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from kvfence.evidence.vllm import ASK_PREFILL

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from processes import Processes, free_ports, processes  # noqa: E402

MODULE = "kvfence.guard.vllm"
STOCK: Mapping[str, str] = MappingProxyType({})
NAME = "smol"

DTYPE = "float32"
"""A processor without bfloat16 products takes five times as long for a prompt in that."""


class Sizes(Struct, frozen=True):
    """Units: tokens, blocks, seconds. ``blocks``: of each pool; ``lease_s``: prefill holds pages, vLLM's default."""

    context: int = 2048
    block: int = 32
    blocks: int = 512
    lease_s: int = 30


class Site(Struct, frozen=True):
    """Where the engine lies: its interpreter and the checkpoint.

    ``guard``: variables of the guard, which is installed there too; stock where there are none.
    """

    python: Path
    model: Path
    guard: Mapping[str, str] = STOCK
    arguments: tuple[str, ...] = ()


class Pair(Struct, frozen=True):
    """Two running roles: their URLs, the processes by name with their logs, and ``restart``, as of ``Workers``."""

    prefill: str
    decode: str
    held: Processes
    restart: Callable[..., None]


class Workers(Struct, frozen=True):
    """Running workers by name, which begins with the role.

    ``restart``: starts those that are named anew, each of another ``Site`` or as it was (None), and waits for them.
    """

    urls: Mapping[str, str]
    held: Processes
    restart: Callable[..., None]

    def pair(self, prefill: str = "prefill", decode: str = "decode") -> Pair:
        """Give two of them as a pair."""
        return Pair(self.urls[prefill], self.urls[decode], self.held, self.restart)


def environment(site: Site, side_channel: int) -> dict[str, str]:
    """Give what the engine's processes find: one thread each, UCX over TCP on loopback."""
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        **site.guard,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "UCX_TLS": "tcp,sm,self",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def command(site: Site, sizes: Sizes, role: str, port: int) -> list[str]:
    """Give one role's command line; with variables of the guard the connector is the guard's."""
    transfer = {
        "kv_connector": "NixlConnector",
        "kv_role": {"prefill": "kv_producer", "decode": "kv_consumer"}[role],
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"kv_lease_duration": sizes.lease_s, "num_threads": 0},
    }
    if site.guard:
        transfer["kv_connector_module_path"] = MODULE
    given = [str(site.python.parent / "vllm"), "serve", str(site.model), "--served-model-name", NAME]
    given += ["--host", "127.0.0.1", "--port", str(port), "--dtype", DTYPE, "--enforce-eager"]
    given += ["--max-model-len", str(sizes.context), "--max-num-seqs", "8", "--block-size", str(sizes.block)]
    given += ["--num-gpu-blocks-override", str(sizes.blocks)]
    return [*given, "--kv-transfer-config", json.dumps(transfer), *site.arguments]


@contextmanager
def running(sites: Mapping[str, Site], sizes: Sizes, logs: Path) -> Iterator[Workers]:
    """Start workers, wait until they answer, and end them with all their children. ``sites``: by name of worker."""
    ports = free_ports(2 * len(sites))
    at = {name: (ports[2 * n], ports[2 * n + 1]) for n, name in enumerate(sites)}
    urls = {name: f"http://127.0.0.1:{port}" for name, (port, _) in at.items()}
    with processes(logs) as held:

        def begin(name: str, site: Site) -> None:
            port, channel = at[name]
            held.start(name, command(site, sizes, name.partition("-")[0], port), environment(site, channel))

        def restart(**others: Site | None) -> None:
            ending = [name for name in others if held.is_running(name)]
            if ending:
                held.end(*ending)
            for name, other in others.items():
                begin(name, other or sites[name])
            held.wait_until_ready([f"{urls[name]}/health" for name in others])

        for name, site in sites.items():
            begin(name, site)
        held.wait_until_ready([f"{url}/health" for url in urls.values()])
        yield Workers(urls, held, restart)


# ---- a hand-off, step by step ----

Params = dict[str, Any]


def complete(url: str, prompt: str | list[int], max_tokens: int, params: Params | None = None, **more: Any) -> Any:
    """Ask one role for a greedy completion, with a hand-off or without."""
    body = {"model": NAME, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "seed": 0, **more}
    if params is not None:
        body["kv_transfer_params"] = params
    return httpx.post(f"{url}/v1/completions", json=body, timeout=600, trust_env=False)


def prefilled(pair: Pair, prompt: str | list[int], **more: Any) -> Params:
    """Let prefill compute a prompt, and give the hand-off that it answers with."""
    answer = complete(pair.prefill, prompt, 1, ASK_PREFILL, **more)
    answer.raise_for_status()
    params: Params = answer.json()["kv_transfer_params"]
    return params


def handed_off(pair: Pair, prompt: str | list[int], max_tokens: int, **more: Any) -> Any:
    """Ask the pair as a proxy does: prefill first, decode with what it gave."""
    return complete(pair.decode, prompt, max_tokens, prefilled(pair, prompt, **more), **more)


def text_of(answer: httpx.Response) -> str:
    """Give what was generated."""
    answer.raise_for_status()
    text: str = answer.json()["choices"][0]["text"]
    return text


def metric(url: str, name: str, **labels: str) -> float:
    """Sum a metric over the series that have these labels; 0 where there are none."""
    text = httpx.get(f"{url}/metrics", timeout=60, trust_env=False).text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def main() -> None:
    """Keep a pair up for whoever wants to look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--guard", choices=("off", "observe", "enforce"), default="off")
    parser.add_argument("--lease", type=int, default=Sizes().lease_s)
    given = parser.parse_args()
    logs = Path(tempfile.mkdtemp(prefix="vllm-"))
    guard = {"KVFENCE_GUARD": given.guard, "KVFENCE_GUARD_KEY": secrets.token_hex(32)} if given.guard != "off" else {}
    site = Site(given.python.absolute(), given.model.absolute(), guard)
    with running({"prefill": site, "decode": site}, Sizes(lease_s=given.lease), logs) as workers:
        pair = workers.pair()
        sys.stdout.write(f"{pair.prefill} {pair.decode}\n")
        sys.stdout.flush()
        sys.stderr.write(f"prefill {pair.prefill}, decode {pair.decode}; logs in {logs}; Ctrl-C ends them\n")
        signal.pause()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(0)
