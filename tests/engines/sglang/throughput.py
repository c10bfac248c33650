"""What the guard costs a pair in requests a second: a guarded and a stock pair that take turns on one machine.

    make bench-sglang ARGS="--rounds 12"

Both pairs are up; while one is asked, every process of the other is stopped, so that it takes no core. In each round
both get the same prompts, the stock pair first in every second one. Prints one JSON document: how long each round took,
how much CPU time of prefill and decode, and of each the ratio, guarded to stock, with its 95 % interval (Student's t of
the logarithms). CPU time leaves out what other processes took from the pair; SGLang's schedulers poll while they wait.
``--guard off`` measures a stock pair against a stock pair: what the method itself says where there is no difference.
"""

import argparse
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import psutil
from msgspec import Struct
from pair import OFF, Pair, Site, Sizes, ask, running
from scipy import stats
from seen import total

from kvfence.models.bundled import embedded_model

CONCURRENCY = 4
WORDS = 24
"""A prompt of some 130 tokens; no two begin alike."""

TOKENS = 16


class Round(Struct, frozen=True):
    """One round of one pair. Units: seconds; ``cpu_s`` of all processes of both roles."""

    took_s: float
    cpu_s: float


class Ratio(Struct, frozen=True):
    """Guarded to stock, and its 95 % interval."""

    ratio: float
    low: float
    high: float


class Cost(Struct, frozen=True):
    """``a_second``, ``a_cpu_second``: of requests. ``load``: of the machine in the minute before the end."""

    release: str
    guard: str
    requests: int
    guarded: tuple[Round, ...]
    stock: tuple[Round, ...]
    a_second: Ratio
    a_cpu_second: Ratio
    pages_checked: int
    load: float


def signal_pair(pair: Pair, which: signal.Signals) -> None:
    """Stop or wake every process of a pair."""
    for group in pair.groups.values():
        os.killpg(group, which)


def cpu_s(pair: Pair) -> float:
    """Give the CPU time that both roles have used in their lives. Units: seconds."""
    used = 0.0
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) in (pair.groups["prefill"], pair.groups["decode"]):
                used += sum(process.cpu_times()[:2])
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return used


def batch(pair: Pair, numbers: Sequence[int]) -> Round:
    """Ask a batch of questions, some at once, with the other pair stopped.

    Raises:
        SystemExit: not every answer came.
    """

    def one(number: int) -> int:
        words = " ".join(f"word{number}x{at}" for at in range(WORDS))
        return ask(pair, f"{number}. Repeat: {words}", TOKENS).status_code

    before, started = cpu_s(pair), time.monotonic()
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        answers = set(pool.map(one, numbers))
    took = time.monotonic() - started
    if answers != {200}:
        raise SystemExit(f"answers {sorted(answers)}; see {pair.logs}")
    return Round(round(took, 3), round(cpu_s(pair) - before, 2))


def measure(pairs: dict[str, Pair], rounds: int, requests: int) -> dict[str, list[Round]]:
    """Let both pairs take turns; the first round warms up and does not count."""
    took: dict[str, list[Round]] = {name: [] for name in pairs}
    for number in range(rounds + 1):
        for name in sorted(pairs, reverse=bool(number % 2)):
            signal_pair(pairs[name], signal.SIGCONT)
            spent = batch(pairs[name], range(number * requests, (number + 1) * requests))
            signal_pair(pairs[name], signal.SIGSTOP)
            if number:
                took[name].append(spent)
        sys.stderr.write(f"round {number} of {rounds}: {[each[-1:] for each in took.values()]}\n")
    return took


def ratio(guarded: Sequence[float], stock: Sequence[float]) -> Ratio:
    """Give how much more the guarded pair does in its time; both took these times for the same."""
    logs = np.log(np.array(stock) / np.array(guarded))
    half = float(stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs)))
    middle = float(logs.mean())
    low, centre, high = (round(float(np.exp(each)), 4) for each in (middle - half, middle, middle + half))
    return Ratio(centre, low, high)


def main() -> None:
    """Start both, measure, and end them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--guard", choices=("off", "observe", "enforce"), default="enforce")
    given = parser.parse_args()
    release = os.environ["SGLANG_RELEASE"]
    site = Site(
        Path(os.environ["SGLANG_PYTHON"]), Path(os.environ["SGLANG_FOLDER"]), embedded_model(lambda _text: None)
    )
    guard = {"KVFENCE_GUARD": given.guard, "KVFENCE_GUARD_KEY": secrets.token_hex(32)}
    with ExitStack() as stack:
        pairs: dict[str, Pair] = {}
        for name, variables in (("guarded", guard), ("stock", OFF)):
            logs = Path(tempfile.mkdtemp(prefix=f"sglang-{name}-"))
            pair = stack.enter_context(running(msgspec.structs.replace(site, guard=variables), release, Sizes(), logs))
            stack.callback(signal_pair, pair, signal.SIGCONT)
            signal_pair(pair, signal.SIGSTOP)
            pairs[name] = pair
        took = measure(pairs, given.rounds, given.requests)
        signal_pair(pairs["guarded"], signal.SIGCONT)
        urls = (pairs["guarded"].prefill, pairs["guarded"].decode)
        checked = sum(total(url, "kvfence:guard_pages_checked_total") for url in urls)
        cost = Cost(
            release,
            given.guard,
            given.requests,
            tuple(took["guarded"]),
            tuple(took["stock"]),
            ratio(*([each.took_s for each in took[name]] for name in ("guarded", "stock"))),
            ratio(*([each.cpu_s for each in took[name]] for name in ("guarded", "stock"))),
            int(checked),
            os.getloadavg()[0],
        )
    sys.stdout.write(msgspec.json.encode(cost).decode() + "\n")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
