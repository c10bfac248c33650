"""A pool's history out of start-up logs: every start of a process begins an interval.

``kvfence.evidence`` reads the lines; it keeps the last start, we keep them all. Read ``history.py`` first.
"""

from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from msgspec import structs

from kvfence.core.errors import EvidenceError
from kvfence.evidence.gather import FORMS
from kvfence.evidence.readings import Notebook, Reading
from kvfence.evidence.scan import Scan
from kvfence.evidence.sglang import INPUT_MARGIN
from kvfence.evidence.sources import expand, open_source, rotated
from kvfence.scope.history import combine, vulnerable_of
from kvfence.scope.relation import Interval

_START = "start"
_NAMES = ("pool_tokens", "context_len", "version", "role")


def intervals_of_logs(specs: Sequence[str]) -> tuple[list[Interval], list[str]]:
    """Give the intervals that start-up logs show, and what must be said of them.

    Raises:
        EvidenceError: a log cannot be read, or none shows a pool.
    """
    parts: list[tuple[str | None, Interval]] = []
    notes: list[str] = []
    for spec in specs:
        name, replica = _named(spec)
        for names in rotated(expand(name)):
            found = _of_log(names, replica)
            if not found:
                notes.append(f"{names[-1]}: no start shows a pool; it is not used")
            parts += found
    if not parts:
        raise EvidenceError(f"--deployments: no pool stands in {', '.join(specs)}; give a history file (.toml)")
    if any(interval.replica is None for _role, interval in parts):
        notes.append("start-up logs without a replica (FILE=REPLICA) hold for every one")
    if any(interval.start is None for _role, interval in parts):
        notes.append("a start without a time counts from the beginning")
    return combine(parts), notes


def _named(spec: str) -> tuple[str, str | None]:
    """Take FILE=REPLICA apart."""
    name, sign, replica = spec.rpartition("=")
    return (spec, None) if not sign or Path(spec).exists() else (name, replica)


def _of_log(names: Sequence[str], replica: str | None) -> list[tuple[str | None, Interval]]:
    scan = Scan(names[-1], FORMS)
    for name in names:
        opened = open_source(name)
        with closing(opened):
            scan.feed(opened.blocks(), name)
    found: list[tuple[str | None, Interval]] = []
    for book in scan.books.values():
        found += [(role, structs.replace(each, replica=replica)) for role, each in _of_process(book)]
    return found


def _of_process(book: Notebook) -> list[tuple[str | None, Interval]]:
    pools = book.all("pool_tokens")
    starts = book.all(_START) or pools
    bounds = [reading.order for reading in starts] + [1 << 62]
    found = []
    engine = max(book.engines, key=lambda name: book.engines[name]) if book.engines else None
    for begin, (low, high) in zip(starts, pairwise(bounds), strict=False):
        said = {name: _heaviest(book.all(name), low, high) for name in _NAMES}
        pool = said["pool_tokens"]
        if pool is None:
            continue
        role = said["role"].value if said["role"] is not None else None
        version = said["version"] or _heaviest(book.all("version"), 0, high)
        release = str(version.value) if version is not None else None
        context = said["context_len"]
        tokens = int(pool.value)
        found.append(
            (
                "decode" if role == "decode" else None,
                Interval(
                    start=_at(begin),
                    pool=None if role == "decode" else tokens,
                    decode_pool=tokens if role == "decode" else None,
                    context=int(context.value) if context is not None else None,
                    engine=engine,
                    release=release,
                    single=role == "single",
                    margin=INPUT_MARGIN if engine == "sglang" else 0,
                    vulnerable=vulnerable_of(release, engine, role == "single"),
                    origin=f"{pool.origin.source}:{pool.origin.line}",
                ),
            )
        )
    return _closed(found)


def _closed(found: list[tuple[str | None, Interval]]) -> list[tuple[str | None, Interval]]:
    """End each interval where the next start of the process is."""
    ends = [interval.start for _role, interval in found[1:]]
    return [
        (role, structs.replace(interval, end=end)) for (role, interval), end in zip(found, [*ends, None], strict=True)
    ]


def _heaviest(readings: Sequence[Reading], low: int, high: int) -> Reading | None:
    best: Reading | None = None
    for reading in readings:
        if low <= reading.order < high and (best is None or reading.weight >= best.weight):
            best = reading
    return best


def _at(reading: Reading) -> datetime | None:
    try:
        moment = datetime.fromisoformat((reading.origin.at or "").replace(",", ".").split(" TP")[0])
    except ValueError:
        return None
    return moment.replace(tzinfo=None)
