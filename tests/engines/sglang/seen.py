"""What a pair shows of itself: the guard's counts, and what replay says of its traces."""

import re
import time
from collections.abc import Callable

import httpx
import traces
from conftest import TRACES
from pair import Pair


def total(url: str, name: str, **labels: str) -> float:
    """Add up a metric's samples that have these labels; 0 where there are none."""
    text = httpx.get(f"{url}/metrics", timeout=60, trust_env=False).text
    found = re.findall(rf"^{re.escape(name)}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(float(value) for given, value in found if all(each in given for each in wanted))


def decisions(pair: Pair, answer: str, **labels: str) -> int:
    """Count the guard's decisions of one kind over both roles."""
    both = (pair.prefill, pair.decode)
    return int(sum(total(url, "kvfence:guard_decisions_total", answer=answer, **labels) for url in both))


def held(pair: Pair) -> int:
    """Give how many of decode's pages are in quarantine."""
    return int(total(pair.decode, "kvfence:guard_quarantined_pages"))


def rulings(pair: Pair) -> dict[str, str]:
    """Replay the traces that the pair has written so far; give what is said of each role's."""
    return dict(traces.rulings(pair.logs / TRACES))


def until(holds: Callable[[], bool], timeout_s: float) -> bool:
    """Ask until it holds."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.25)
    return False
