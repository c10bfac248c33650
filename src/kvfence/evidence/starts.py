"""Which start of a process a reading belongs to: the last start counts, and what no restart explains is not believed.

Two sizes in one text are a restart, or two processes, or somebody's forgery. Where a start's own line stands between
them the last holds. Where the text speaks of both roles or of several series, its time goes back, or no start lies
between, the worst holds: the least pool, the greatest context.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from kvfence.evidence.readings import Found, Notebook, Reading

START = "start"
"""The name under which a parser notes that a process says how it was started."""

_WORST = {
    "pool_tokens": min,
    "pool_tokens_swa": min,
    "allocated_tokens": min,
    "effective_input_limit": min,
    "context_len": max,
}
_WEIGHT = 10
"""Above what any line says by itself."""


def settle_starts(book: Notebook) -> None:
    """Forget what an earlier start printed; where the readings are of no one process, let the worst hold."""
    starts = book.all(START)
    sizes = [reading for name in ("pool_tokens", "context_len") for reading in _heaviest(book, name)]
    mixed = _why_mixed(book, starts, sizes)
    if not mixed and starts:
        for name in _WORST:
            book.forget_before(name, starts[-1].order)
        mixed = "no start lies between"
        if not any(name in book for name in ("pool_tokens", "allocated_tokens", "effective_input_limit")) and sizes:
            book.problems.append(f"what was printed before the last start, at line {starts[-1].origin.line}, is past")
    if mixed:
        for name, worst in _WORST.items():
            _take_worst(book, name, worst(_heaviest(book, name), key=_size, default=None), mixed)


def _why_mixed(book: Notebook, starts: Sequence[Reading], sizes: Sequence[Reading]) -> str:
    roles = {str(reading.value) for reading in book.all("role")}
    if {"prefill", "decode"} <= roles:
        return "the text speaks of prefill and decode"
    if "gauge_pool_tokens" in book:
        return "its samples are of several series"
    if _goes_back(starts) or _goes_back(each for each in sizes if each.name == "pool_tokens"):
        return "the text's time goes backwards"
    return ""


def _goes_back(readings: Iterable[Reading]) -> bool:
    times = [reading.origin.at for reading in sorted(readings, key=lambda each: each.order) if reading.origin.at]
    return any(len(before) == len(after) and after < before for before, after in pairwise(times))


def _heaviest(book: Notebook, name: str) -> list[Reading]:
    chosen = book.choose(name)
    return [each for each in book.all(name) if chosen is not None and each.weight == chosen.weight]


def _size(reading: Reading) -> float:
    return float(reading.value)


def _take_worst(book: Notebook, name: str, worst: Reading | None, why: str) -> None:
    if worst is None or len({each.value for each in _heaviest(book, name)}) == 1:
        return
    shown = "allocated tokens" if name == "allocated_tokens" else name
    book.problems.append(f"{shown} differs within the text, and {why}: {worst.value} at line {worst.origin.line} holds")
    if name == "allocated_tokens":
        book.forget_before(name, worst.order + 1)
    book.derive(Found(name, worst.value, _WEIGHT), worst)
