"""Our executor against vLLM's CPU build: same model, prompts, dtype, cores; one run, in turn. ``make bench-vllm``.

    python benchmarks/vllm.py --vllm-python PATH [--dtype float32] [--threads 2] [--prompts 16] [--rounds 1]

vLLM lives in an environment of its own, whose interpreter is named by ``--vllm-python``. Each runner has a process: it
loads, warms up on two short prompts, serves all prompts at once, then one prompt alone. Ours is the executor under the
benchmark's scheduler (``peers.py``), one process, so neither side pays for HTTP; heads are compared elsewhere
(``compare.py``: microseconds a pass). Ratios above 1 are in our favour. Goal: level, 1.0.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

RUNNERS = ("kvfence", "vllm")
GOAL = 1.0
PROCESS_TIMEOUT_S = 1800
CONTEXT_TOKENS = 2048
ALONE_TOKENS = 32

Prompts = Sequence[Sequence[int]]
Generate = Callable[[Prompts, int], list[list[int]]]


class Load(Struct, frozen=True):
    """What both runners do. Units: tokens; ``threads``: of each."""

    model: str
    dtype: str
    prompts: int
    prompt_tokens: int
    new: int
    threads: int


class Timing(Struct, frozen=True):
    """One runner's seconds for all prompts at once, and its tokens a second for one prompt alone."""

    runner: str
    wall_s: float
    cpu_s: float
    alone_per_s: float
    load: float


def vllm_runner(load: Load) -> Generate:
    """Load vLLM in this process, without prefix caching: prompts repeat between the parts of a run."""
    from vllm import LLM, SamplingParams  # type: ignore[attr-defined, import-not-found, unused-ignore]

    engine = LLM(
        load.model,
        dtype=load.dtype,
        max_model_len=CONTEXT_TOKENS,
        max_num_seqs=load.prompts,
        enforce_eager=True,
        enable_prefix_caching=False,
    )

    def generate(prompts: Prompts, num_new: int) -> list[list[int]]:
        settings = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True)
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        return [list(each.outputs[0].token_ids) for each in engine.generate(given, settings, use_tqdm=False)]

    return generate


def kvfence_runner(load: Load) -> Generate:
    """Load our executor as ``peers.py`` does."""
    import peers

    return peers.kvfence_runner(peers.Workload(**msgspec.structs.asdict(load)))


def run_here(runner: str, load: Load) -> Timing:
    """Measure one runner in this process."""
    generate = {"kvfence": kvfence_runner, "vllm": vllm_runner}[runner](load)
    draw = random.Random(1)
    prompts = [[draw.randrange(100, 40_000) for _ in range(load.prompt_tokens)] for _ in range(load.prompts)]
    generate([prompt[:16] for prompt in prompts[:2]], 2)
    load_average = os.getloadavg()[0]
    cpu, wall = time.process_time(), time.perf_counter()
    tokens = generate(prompts, load.new)
    cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
    if [len(each) for each in tokens] != [load.new] * load.prompts:
        raise RuntimeError(f"{runner} did not give {load.new} tokens for each of {load.prompts} prompts")
    marks = []
    for num_new in (1, 1 + ALONE_TOKENS):  # their difference is decoding alone
        start = time.perf_counter()
        generate(prompts[:1], num_new)
        marks.append(time.perf_counter() - start)
    return Timing(runner, wall_s, cpu_s, ALONE_TOKENS / (marks[1] - marks[0]), load_average)


def run_apart(runner: str, load: Load, python: str) -> Timing:
    """Measure one runner in a new process of its environment."""
    safe = ["-P"] if runner == "vllm" else []  # this file must not be what ``import vllm`` finds
    command = [python, *safe, __file__, "--runner", runner, "--load", msgspec.json.encode(load).decode()]
    bind = "nobind" if load.threads == 1 else f"0-{load.threads - 1}"
    settings = {
        "OMP_NUM_THREADS": str(load.threads),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": bind,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PROCESS_TIMEOUT_S, env={**os.environ, **settings}
    )
    if done.returncode != 0:
        raise RuntimeError(f"{runner} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Timing)


def report(timings: Sequence[Timing], load: Load) -> int:
    """Print every measurement and the headline; give the exit status."""
    for each in timings:
        rate = load.prompts * load.new / each.wall_s
        print(
            f"{each.runner:>8}  wall {each.wall_s:7.2f} s  cpu {each.cpu_s:7.2f} s  {rate:6.1f} tokens/s  "
            f"alone {each.alone_per_s:5.1f} tokens/s  load {each.load:5.2f}"
        )
    wall, cpu = (
        {name: min(getattr(each, field) for each in timings if each.runner == name) for name in RUNNERS}
        for field in ("wall_s", "cpu_s")
    )
    alone = {name: max(each.alone_per_s for each in timings if each.runner == name) for name in RUNNERS}
    ratio = cpu["vllm"] / cpu["kvfence"]
    print(
        f"vllm {load.dtype} {load.threads} thread(s), {load.prompts} x {load.prompt_tokens} + {load.new} "
        f"{'met' if ratio >= GOAL else 'MISSED'}: vLLM takes {ratio:.2f} times our cpu seconds (goal {GOAL}), "
        f"{wall['vllm'] / wall['kvfence']:.2f} times our wall seconds; alone we give "
        f"{alone['kvfence'] / alone['vllm']:.2f} times its tokens a second"
    )
    return 0 if ratio >= GOAL else 1


def main() -> int:
    """Run both in turn and report; with ``--runner`` be one of them."""
    parser = argparse.ArgumentParser(description="kvfence's executor against vLLM's CPU build.")
    parser.add_argument("--vllm-python", default=".venv-vllm/bin/python", help="interpreter that has vLLM")
    parser.add_argument("--model", default="", help="checkpoint folder; empty: the embedded model")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--runner", choices=RUNNERS, help=argparse.SUPPRESS)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.runner:
        timing = run_here(given.runner, msgspec.json.decode(given.load, type=Load))
        print(json.dumps(msgspec.to_builtins(timing)))
        return 0
    if not Path(given.vllm_python).exists():
        print(f"{given.vllm_python} is not there: make bench-vllm makes it", file=sys.stderr)
        return 2
    load = Load(given.model or _embedded(), given.dtype, given.prompts, given.prompt_tokens, given.new, given.threads)
    pythons = {"kvfence": sys.executable, "vllm": given.vllm_python}
    return report([run_apart(name, load, pythons[name]) for _ in range(given.rounds) for name in RUNNERS], load)


def _embedded() -> str:
    import peers

    return peers._embedded()


if __name__ == "__main__":
    sys.exit(main())
