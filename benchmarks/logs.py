"""How fast a log is audited: all parsers and all rules over a synthetic one, on one core; prints MB/s and peak memory.

    python -m benchmarks.logs [--mb 200] [--file PATH]

The log is made once and kept only for the run. CPU time is what counts: other processes share this machine.
"""

import argparse
import random
import resource
import tempfile
import time
from pathlib import Path

from kvfence.audit.deployment import Stated, assemble
from kvfence.audit.runner import run
from kvfence.evidence.document import facts_document
from kvfence.evidence.gather import gather

START = (
    "[2026-08-01 00:00:00 DP{dp} TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 681280, K size: 8.23 GB\n"
    "[2026-08-01 00:00:00 DP{dp} TP0] max_total_num_tokens=681280, chunked_prefill_size=8192, "
    "max_running_requests=48, context_len=1048576, available_gpu_mem=9.99 GB\n"
)
BUSY = (
    "[2026-08-01 00:00:{s:02d} DP{dp} TP0] Decode batch, #running-req: {n}, #token: {t}, token usage: 0.43, "
    "pre-allocated usage: 0.00, #prealloc-req: 0, #transfer-req: 0, #retracted-req: 0, cuda graph: True\n",
    "[2026-08-01 00:00:{s:02d} DP{dp} TP0] Prefill batch, #new-seq: 1, #new-token: {t}, #cached-token: 0, token usage: "
    "0.00, #running-req: 0, #queue-req: 0, #prealloc-req: 0, #inflight-req: 1\n",
    "[2026-08-01 00:00:{s:02d}] INFO:     127.0.0.1:38382 - \"POST /v1/chat/completions HTTP/1.1\" 200 OK\n",
    "(EngineCore_DP{dp} pid=7) INFO 08-01 00:00:{s:02d} [loggers.py:127] Avg prompt throughput: {t}.1 tokens/s, "
    "Avg generation throughput: 301.2 tokens/s, Running: {n} reqs, Waiting: 0 reqs, GPU KV cache usage: 12.1%\n",
)  # fmt: skip


def main() -> None:
    """Make the log, read it, print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = options.file or make_log(Path(directory) / "busy.log", options.mb)
        size = path.stat().st_size / 1e6
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        cpu, wall = time.process_time(), time.perf_counter()
        facts = gather([str(path)])
        audit = run(assemble(facts, Stated()))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        source = facts_document(facts)["sources"][0]  # type: ignore[index]
        print(f"{size:.0f} MB: {size / cpu:.0f} MB/s of CPU time, {size / wall:.0f} MB/s of wall time")
        print(f"{len(audit.findings)} findings of all rules")
        print(f"peak memory {after / 1024:.0f} MiB, {(after - before) / 1024:.0f} MiB of it for this")
        print({key: source[key] for key in ("engine", "role", "pool_tokens", "context_len", "event")})


def make_log(path: Path, megabytes: int) -> Path:
    """A busy pair's log: a start, then batches, access lines and statistics."""
    seed = random.Random(7)
    block = "".join(
        seed.choice(BUSY).format(
            s=seed.randrange(60), dp=seed.randrange(4), n=seed.randrange(48), t=seed.randrange(40000)
        )
        for _ in range(20000)
    )
    with path.open("w", encoding="utf-8") as file:
        file.write("".join(START.format(dp=dp) for dp in range(4)))
        for _ in range(max(1, megabytes * 1_000_000 // len(block))):
            file.write(block)
    return path


if __name__ == "__main__":
    main()
