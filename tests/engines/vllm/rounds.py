"""What the guard costs two vLLM engines with the model, in CPU seconds: rounds of hand-offs, guarded and as shipped.

    KVFENCE_GUARD_KEY=... VLLM_ENABLE_V1_MULTIPROCESSING=0 python rounds.py MODEL [ROUNDS]

Run by the engine's Python. Both pairs live in one process, and rounds are taken in turn, so that a machine's load falls
on both; what a round costs is the whole process's, its threads' included. Prints a JSON line from the third round on:
the geometric mean of guarded over shipped so far, and its 95 % interval. The last line is the result.
"""

import json
import math
import os
import statistics
import sys
import time
from typing import Any

from model_steps import Both
from steps import ASKS

AT_ONCE, NEW, ROUNDS = 8, 8, 24


def handed_off(both: Both, number: int) -> None:
    """Hand off eight prompts at once, and run all to their ends."""
    prompts = [
        both.tokenizer.encode(f"Round {number}, file {n}: river stone cloud window garden. " * 3)
        for n in range(AT_ONCE)
    ]
    asked = {f"p{number}-{n}": (tokens, dict(ASKS)) for n, tokens in enumerate(prompts)}
    ended = both.run_all("prefill", asked, 1)
    read: dict[str, tuple[list[int], Any]] = {
        f"d{number}-{n}": (tokens, json.loads(json.dumps(ended[f"p{number}-{n}"].kv_transfer_params)))
        for n, tokens in enumerate(prompts)
    }
    both.run_all("decode", read, NEW)


def main(model: str, rounds: int) -> None:
    """Measure in turn, and say what came of it."""
    sides = {"guarded": Both(model, guard=True), "shipped": Both(model, guard=False)}
    costs: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side in sorted(sides, reverse=bool(number % 2)):
            began = time.process_time()
            handed_off(sides[side], number)
            costs[side].append(time.process_time() - began)
        if number >= 3:
            sys.stdout.write(json.dumps(compared(costs["guarded"][1:], costs["shipped"][1:])) + "\n")
            sys.stdout.flush()


def compared(guarded: list[float], shipped: list[float]) -> dict[str, float]:
    """Give the geometric mean of the rounds' ratios and its 95 % interval, by Student's t (to its first order)."""
    logs = [math.log(a / b) for a, b in zip(guarded, shipped, strict=True)]
    student = 1.96 + 2.37 / (len(logs) - 1)
    mean, spread = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs)) * student
    found = {"ratio": mean, "low": mean - spread, "high": mean + spread}
    return {
        **{name: round(math.exp(value), 4) for name, value in found.items()},
        "rounds": len(logs),
        "shipped_s": statistics.median(shipped),
        "load": os.getloadavg()[0],
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
    os._exit(0)
