"""Draws a pool into a ``PageMap``, bounded whatever the pool: where there are too many runs, pages share a cell.

Not for: deciding anything.
"""

import numpy as np
import numpy.typing as npt

from kvfence.core.ids import AttemptId
from kvfence.core.pages import PageState
from kvfence.driver.numpy_ledger import NumpyLedger
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.prefill import PrefillNode
from kvfence.runtime.page_map import NOBODY, UNNAMED, PageMap, PageRun

RUNS_MAX = 1024
CELLS_MAX = 1024
HOLDERS_MAX = 512
"""Runs are at most 10 bytes, holders and phases at most 20: a map is below 21 KiB."""

STATES = tuple(PageState)
_FREE = STATES.index(PageState.FREE)
_TELLING = np.array(
    [
        {
            PageState.FREE: 0,
            PageState.ADOPTED: 1,
            PageState.SEALED: 2,
            PageState.GRANTED: 3,
            PageState.QUARANTINED: 4,
        }[state]
        for state in STATES
    ],
    dtype=np.uint8,
)
"""Of the pages of one cell the one furthest from free and calm is shown: a quarantined page never disappears."""


def holders_of(node: PrefillNode | DecodeNode) -> dict[int, AttemptId]:
    """Give who holds each serial: of several, all one tenant's, the first. Pages kept for re-use have nobody."""
    held = {serial: entry.attempt for serial, entry in node.pool.quarantined.items() if entry.attempt is not None}
    if isinstance(node, PrefillNode):
        held.update((serial, next(iter(lot.holders))) for serial, lot in node.pool.held.items() if lot.holders)
        return held
    for attempt, handoff in node.handoffs.items():
        held.update((lot.serial, attempt) for lot in (handoff.remote, *handoff.own) if lot is not None)
    return held


def draw_pool(ledger: NumpyLedger, node: PrefillNode | DecodeNode) -> PageMap:
    """Draw the pool now."""
    states, serials = ledger.table()
    held = holders_of(node)
    phases = {attempt: h.phase.value for attempt, h in node.handoffs.items() if h.phase.value != "closed"}
    named = list(dict.fromkeys([*held.values(), *phases]))[:HOLDERS_MAX]
    numbers = {attempt: number for number, attempt in enumerate(named)}
    holders = _holders(states, serials, {serial: numbers.get(attempt, UNNAMED) for serial, attempt in held.items()})
    per_cell, runs = _runs(states, holders)
    gateways = list(dict.fromkeys(attempt.gateway for attempt in named))
    return PageMap(
        num_pages=ledger.num_pages,
        pages_per_cell=per_cell,
        runs=runs,
        gateways=tuple(gateways),
        holders=tuple((gateways.index(attempt.gateway), attempt.counter) for attempt in named),
        phases=tuple((numbers[attempt], phase) for attempt, phase in phases.items() if attempt in numbers),
    )


def _holders(
    states: npt.NDArray[np.uint8], serials: npt.NDArray[np.int64], numbers: dict[int, int]
) -> npt.NDArray[np.int64]:
    """Give each page's holder by the serial it is under; a free page has none."""
    holders = np.full(len(states), NOBODY, dtype=np.int64)
    if numbers:
        known = np.array(sorted(numbers), dtype=np.int64)
        of_known = np.array([numbers[serial] for serial in known.tolist()], dtype=np.int64)
        at = np.minimum(np.searchsorted(known, serials), len(known) - 1)
        found = (known[at] == serials) & (states != _FREE)
        holders[found] = of_known[at[found]]
    return holders


def _runs(states: npt.NDArray[np.uint8], holders: npt.NDArray[np.int64]) -> tuple[int, tuple[PageRun, ...]]:
    per_cell, starts = 1, _starts(states, holders)
    if len(starts) > RUNS_MAX:
        per_cell = -(-len(states) // CELLS_MAX)
        states, holders = _cells(states, holders, per_cell)
        starts = _starts(states, holders)
    lengths = np.diff(np.append(starts, len(states)))
    rows = zip(states[starts].tolist(), holders[starts].tolist(), lengths.tolist(), strict=True)
    return per_cell, tuple(PageRun(*row) for row in rows)


def _starts(states: npt.NDArray[np.uint8], holders: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    changes = (states[1:] != states[:-1]) | (holders[1:] != holders[:-1])
    return np.append(0, np.flatnonzero(changes) + 1)


def _cells(
    states: npt.NDArray[np.uint8], holders: npt.NDArray[np.int64], per_cell: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Take the most telling page of each cell; the last cell may be of fewer pages."""
    missing = -len(states) % per_cell
    padded = np.pad(states, (0, missing), constant_values=_FREE).reshape(-1, per_cell)
    chosen = _TELLING[padded].argmax(axis=1)
    rows = np.arange(len(chosen))
    of = np.pad(holders, (0, missing), constant_values=NOBODY).reshape(-1, per_cell)
    return padded[rows, chosen], of[rows, chosen]
