"""What the guard costs two vLLM engines with the model, in CPU seconds: rounds of hand-offs, guarded and as shipped.

    KVFENCE_GUARD_KEY=... VLLM_ENABLE_V1_MULTIPROCESSING=0 python rounds.py MODEL [ROUNDS]

Run by the engine's Python. Both pairs live in one process, and rounds are taken in turn, so that a machine's load falls
on both; what a round costs is the whole process's, its threads' included. Prints one JSON document: the geometric mean
of guarded over shipped, and its 95 % interval.
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
STUDENT_95 = 2.07
"""For two dozen pairs."""


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
    logs = [math.log(a / b) for a, b in zip(costs["guarded"][1:], costs["shipped"][1:], strict=True)]
    mean, spread = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs)) * STUDENT_95
    found = {
        "ratio": math.exp(mean),
        "low": math.exp(mean - spread),
        "high": math.exp(mean + spread),
        "rounds": len(logs),
        "shipped_s": statistics.median(costs["shipped"][1:]),
        "load": os.getloadavg()[0],
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
    os._exit(0)
