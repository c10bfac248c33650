"""Our executor against transformers' own ways to serve a batch: same model, prompts, dtype, cores; one run.

    python benchmarks/peers.py [--dtype bfloat16] [--prompts 16] [--prompt-tokens 256] [--new 64] [--rounds 1]

Runners: *kvfence* (continuous batching over fenced pages), *continuous* (``generate_batch``) and *static*
(``generate`` on one batch, which needs all prompts of one length at once). Each runs in a process of its own, in
turn, as often as there are rounds; a process warms up on two short prompts first. CPU seconds are compared, the
least of the rounds: wall time says more about the neighbours on a shared machine. Goal: at least twice
*continuous*, no slower than *static*.
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
from typing import Any

import msgspec
from msgspec import Struct

RUNNERS = ("kvfence", "continuous", "static")
CONTINUOUS_GOAL = 2.0
STATIC_GOAL = 1.0
CHUNK_TOKENS = 512
PROCESS_TIMEOUT_S = 1800

Prompts = Sequence[Sequence[int]]
Generate = Callable[[Prompts, int], list[list[int]]]


class Workload(Struct, frozen=True):
    """What every runner does. Units: tokens; ``threads``: of torch."""

    model: str
    dtype: str
    prompts: int
    prompt_tokens: int
    new: int
    threads: int


class Outcome(Struct, frozen=True):
    """What one process measured, warm-up and loading left out."""

    runner: str
    cpu_s: float
    wall_s: float
    load: float
    tokens: list[list[int]]


def kvfence_runner(workload: Workload) -> Generate:
    """Load our executor over a pool of its own; the scheduler in ``generate`` is the benchmark's."""
    from kvfence.kv.host import host_views
    from kvfence.kv.storage import PoolBuffer, pool_bytes
    from kvfence.models.transformer import ExecutorSpec, load_executor

    spec = ExecutorSpec(dtype=workload.dtype, device="cpu", threads=workload.threads)
    executor = load_executor(Path(workload.model), spec)
    layout = executor.layout
    num_pages = workload.prompts * layout.num_pages(workload.prompt_tokens + workload.new)
    pool = PoolBuffer(bytearray(pool_bytes(layout, num_pages)), layout, num_pages)
    executor.bind(host_views(pool, layout))
    return lambda prompts, num_new: schedule(executor, num_pages, prompts, num_new)


def schedule(executor: Any, num_pages: int, prompts: Prompts, num_new: int) -> list[list[int]]:
    """Serve prompts by continuous batching: a budget of tokens a pass, decode rows first, then prefill chunks."""
    from kvfence.core.request import SamplingParams
    from kvfence.models.executor import PassRow

    greedy = SamplingParams(temperature=0.0)
    free = list(range(num_pages))
    random.Random(0).shuffle(free)
    pages: list[list[int]] = [[] for _ in prompts]
    texts = [list(prompt) for prompt in prompts]
    done = [0] * len(prompts)
    ends = [len(prompt) + num_new for prompt in prompts]
    while left := [i for i in range(len(prompts)) if len(texts[i]) < ends[i]]:
        budget, rows, who = CHUNK_TOKENS, [], []
        for i in sorted(left, key=lambda i: len(texts[i]) - done[i] > 1):
            new = texts[i][done[i] : done[i] + budget]
            if not new:
                break
            budget -= len(new)
            stop = done[i] + len(new)
            while len(pages[i]) < executor.layout.num_pages(stop):
                pages[i].append(free.pop())
            sampling = greedy if stop == len(texts[i]) else None
            rows.append(PassRow(new, done[i], list(pages[i]), sampling, stop - len(prompts[i])))
            who.append(i)
        for i, row, token in zip(who, rows, executor.run(rows), strict=True):
            done[i] = row.start + len(row.token_ids)
            if token is not None:
                texts[i].append(token)
            if len(texts[i]) == ends[i]:
                free += pages[i]
                pages[i] = []
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


def continuous_runner(workload: Workload) -> Generate:
    """Load transformers' continuous batching."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = _load_plain(workload)

    def generate(prompts: Prompts, num_new: int) -> list[list[int]]:
        # No end token: every runner gives exactly num_new tokens.
        settings = GenerationConfig(max_new_tokens=num_new, do_sample=False, eos_token_id=-1, pad_token_id=0)
        batching = ContinuousBatchingConfig(
            page_size=16, num_blocks=1024, max_batch_tokens=CHUNK_TOKENS, allow_block_sharing=False
        )
        out = model.generate_batch(
            inputs=[list(prompt) for prompt in prompts],
            generation_config=settings,
            continuous_batching_config=batching,
            warmup=False,
        )
        return [list(result.generated_tokens) for result in out.values()]

    return generate


def static_runner(workload: Workload) -> Generate:
    """Load transformers' ``generate``."""
    import torch

    model = _load_plain(workload)

    def generate(prompts: Prompts, num_new: int) -> list[list[int]]:
        ids = torch.tensor([list(prompt) for prompt in prompts])
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_new,
                min_new_tokens=num_new,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        tokens: list[list[int]] = out[:, ids.shape[1] :].tolist()
        return tokens

    return generate


def _load_plain(workload: Workload) -> Any:
    import torch
    import transformers

    torch.set_num_threads(workload.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    dtype = getattr(torch, workload.dtype)
    return transformers.AutoModelForCausalLM.from_pretrained(workload.model, dtype=dtype).eval()


def run_here(runner: str, workload: Workload) -> Outcome:
    """Measure one runner in this process."""
    load = {"kvfence": kvfence_runner, "continuous": continuous_runner, "static": static_runner}[runner]
    generate = load(workload)
    draw = random.Random(1)
    prompts = [[draw.randrange(100, 40_000) for _ in range(workload.prompt_tokens)] for _ in range(workload.prompts)]
    generate([prompt[:16] for prompt in prompts[:2]], 2)
    load_average = os.getloadavg()[0]
    cpu, wall = time.process_time(), time.perf_counter()
    tokens = generate(prompts, workload.new)
    return Outcome(runner, time.process_time() - cpu, time.perf_counter() - wall, load_average, tokens)


def run_apart(runner: str, workload: Workload) -> Outcome:
    """Measure one runner in a new process."""
    command = [sys.executable, __file__, "--runner", runner, "--workload", msgspec.json.encode(workload).decode()]
    environment = {**os.environ, "OMP_NUM_THREADS": str(workload.threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_TIMEOUT_S, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{runner} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    outcome = msgspec.json.decode(done.stdout.splitlines()[-1], type=Outcome)
    if [len(tokens) for tokens in outcome.tokens] != [workload.new] * workload.prompts:
        raise RuntimeError(f"{runner} did not give {workload.new} tokens for each of {workload.prompts} prompts")
    return outcome


def report(outcomes: Sequence[Outcome], workload: Workload) -> int:
    """Print every measurement, the agreement of tokens, and the headline; give the exit status."""
    ours = next(each.tokens for each in outcomes if each.runner == RUNNERS[0])
    for each in outcomes:
        rate = workload.prompts * workload.new / each.cpu_s
        agree = sum(a == b for a, b in zip(each.tokens, ours, strict=True))
        print(
            f"{each.runner:>11}  cpu {each.cpu_s:8.2f} s  wall {each.wall_s:8.2f} s  load {each.load:5.2f}  "
            f"{rate:7.1f} tokens per cpu s  {agree}/{len(ours)} outputs as kvfence"
        )
    best = {runner: min(each.cpu_s for each in outcomes if each.runner == runner) for runner in RUNNERS}
    continuous, static = (best[runner] / best[RUNNERS[0]] for runner in RUNNERS[1:])
    met = continuous >= CONTINUOUS_GOAL and static >= STATIC_GOAL
    print(
        f"peers {workload.dtype} {'met' if met else 'MISSED'}: {continuous:.2f}x transformers' continuous batching "
        f"(goal {CONTINUOUS_GOAL}), {static:.2f}x generate on a static batch (goal {STATIC_GOAL})"
    )
    return 0 if met else 1


def main() -> int:
    """Run all runners in turn and report; with ``--runner`` be one of them."""
    parser = argparse.ArgumentParser(description="kvfence's executor against transformers' own batching.")
    parser.add_argument("--model", default="", help="checkpoint folder; empty: the embedded model")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--runner", choices=RUNNERS, help=argparse.SUPPRESS)
    parser.add_argument("--workload", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.runner:
        outcome = run_here(given.runner, msgspec.json.decode(given.workload, type=Workload))
        print(json.dumps(msgspec.to_builtins(outcome)))
        return 0
    model = given.model or _embedded()
    workload = Workload(model, given.dtype, given.prompts, given.prompt_tokens, given.new, given.threads)
    outcomes = [run_apart(runner, workload) for _ in range(given.rounds) for runner in RUNNERS]
    return report(outcomes, workload)


def _embedded() -> str:
    from kvfence.models.bundled import embedded_model

    return str(embedded_model(lambda *_: None))


if __name__ == "__main__":
    sys.exit(main())
