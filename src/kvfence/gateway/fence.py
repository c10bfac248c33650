"""``/fence``: both pools page by page as they are now, hand-offs in flight, answers of guards, workers; and its JSON.

The page is one file without anything from elsewhere; it holds no data and asks for ``/fence.json`` once a second, so
that no name can become markup. Tenants appear under numbers of their own, in the order in which they were first seen.
Not for: who may look (``registry.py`` knows the operators' keys).
"""

import base64
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Protocol

from msgspec import Struct

from kvfence.core.ids import AttemptId, Incarnation, TenantId
from kvfence.core.pages import PageState
from kvfence.gateway.probe import PROBE_TENANT
from kvfence.protocol.guards import GUARDS
from kvfence.protocol.handoff import GatewayHandoff
from kvfence.protocol.transitions import GatewayPhase
from kvfence.runtime.owners import Owner
from kvfence.runtime.page_map import NOBODY, PageMap

HANDOFFS_MAX = 256
"""Rows of hand-offs in one answer; the rest is counted."""

NOBODY_SEEN = -1

CACHED = "cached"
DRAWN = (*(state.value for state in PageState), CACHED)
"""How a page can look: its state, but a sealed page that nobody holds is kept for its tenant's next prompt."""
_SEALED = DRAWN.index(PageState.SEALED.value)


class WorkerView(Struct, frozen=True):
    """One worker. ``counts``: pages by state. ``map``: its pool at the last heartbeat, where that had room for it."""

    name: str
    role: str
    incarnation: Incarnation
    state: str
    num_restarts: int
    counts: Mapping[str, int]
    map: PageMap | None


class FenceSource(Protocol):
    """What is drawn. Implemented where the server is composed, and by fakes in tests."""

    def views(self) -> Sequence[WorkerView]:
        """Every worker."""
        ...

    def handoffs(self) -> Sequence[GatewayHandoff]:
        """Every open attempt."""
        ...

    def owner_of(self, attempt: AttemptId) -> Owner | None:
        """Whose an attempt is, where that is remembered."""
        ...

    def guard_decisions(self) -> Mapping[tuple[str, str, str], int]:
        """(guard, place, answer) -> times asked since the start."""
        ...


class TenantRow(Struct, frozen=True):
    """A tenant under its number. Units: hue in degrees."""

    label: str
    hue: int


class WorkerRow(Struct, frozen=True):
    """A worker and its pool. ``cells``: (state, tenant's index or -1, attempt's counter or 0, cells) in order."""

    name: str
    role: str
    id: str
    state: str
    restarts: int
    pages: int
    pages_per_cell: int
    counts: Mapping[str, int]
    cells: list[tuple[int, int, int, int]]


class HandoffRow(Struct, frozen=True):
    """An open attempt. ``tenant``: index, or -1."""

    attempt: int
    tenant: int
    stage: str
    prefill: str
    decode: str
    tokens: int
    age_s: float


class GuardRow(Struct, frozen=True):
    """A guard at one place. ``refuses``: its refusals are requests, and not pages kept from re-use."""

    guard: str
    place: str
    fault: str
    refuses: bool
    answers: dict[str, int]


class FenceState(Struct, frozen=True):
    """Everything that is drawn.

    ``states``: names by index in ``WorkerRow.cells``. ``observed``: guards that are not obeyed.
    """

    model: str
    observed: tuple[str, ...]
    page_tokens: int
    states: list[str]
    tenants: list[TenantRow]
    workers: list[WorkerRow]
    handoffs: list[HandoffRow]
    handoffs_more: int
    guards: list[GuardRow]


class Tenants:
    """Numbers tenants as they come; a number means one tenant for as long as the server runs.

    ``names``: show the tenants' own names, for an operator who asked for that.
    """

    def __init__(self, *, names: bool) -> None:
        self._names = names
        self._numbers: dict[TenantId, int] = {}

    def number(self, tenant: TenantId) -> int:
        """Give a tenant's number, from 0."""
        return self._numbers.setdefault(tenant, len(self._numbers))

    def rows(self, shown: Iterable[int]) -> tuple[list[TenantRow], dict[int, int]]:
        """Give rows for these numbers, and each number's place among them."""
        wanted = set(shown)
        rows: list[TenantRow] = []
        places: dict[int, int] = {}
        for tenant, number in self._numbers.items():
            if number in wanted:
                places[number] = len(rows)
                rows.append(TenantRow(self._label(tenant, number), round(number * 137.508 + 205) % 360))
        return rows, places

    def _label(self, tenant: TenantId, number: int) -> str:
        if tenant == PROBE_TENANT:
            return "the server's own probe"
        return tenant if self._names else f"tenant {number + 1}"


class Fence:
    """Draws the state of one server."""

    def __init__(
        self, source: FenceSource, *, names: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = source
        self._tenants = Tenants(names=names)
        self._clock = clock

    def state(self, model: str, page_tokens: int, observed: tuple[str, ...] = ()) -> FenceState:
        """Give what is to be drawn now."""
        views = self._source.views()
        handoffs = self._source.handoffs()
        seen: dict[AttemptId, int] = {}
        for attempt in (
            *(h.attempt for h in handoffs),
            *(a for view in views if view.map for a in view.map.attempts()),
        ):
            owner = self._source.owner_of(attempt)
            seen[attempt] = NOBODY_SEEN if owner is None else self._tenants.number(owner.tenant)
        rows, places = self._tenants.rows(seen.values())
        tenant_of = {attempt: places.get(number, NOBODY_SEEN) for attempt, number in seen.items()}
        return FenceState(
            model=model,
            observed=observed,
            page_tokens=page_tokens,
            states=list(DRAWN),
            tenants=rows,
            workers=[_worker_row(view, tenant_of) for view in views],
            handoffs=self._handoff_rows(handoffs, views, tenant_of),
            handoffs_more=max(0, len(handoffs) - HANDOFFS_MAX),
            guards=_guard_rows(self._source.guard_decisions()),
        )

    def _handoff_rows(
        self, handoffs: Sequence[GatewayHandoff], views: Sequence[WorkerView], tenant_of: Mapping[AttemptId, int]
    ) -> list[HandoffRow]:
        names = {view.incarnation: view.name for view in views}
        phases: dict[str, dict[AttemptId, str]] = {view.role: {} for view in views}
        for view in views:
            if view.map is not None:
                attempts = view.map.attempts()
                phases[view.role].update((attempts[index], phase) for index, phase in view.map.phases)
        rows = []
        for handoff in handoffs[:HANDOFFS_MAX]:
            owner = self._source.owner_of(handoff.attempt)
            rows.append(
                HandoffRow(
                    attempt=handoff.attempt.counter,
                    tenant=tenant_of[handoff.attempt],
                    stage=stage_of(
                        handoff,
                        phases.get("prefill", {}).get(handoff.attempt, ""),
                        phases.get("decode", {}).get(handoff.attempt, ""),
                    ),
                    prefill=names.get(handoff.prefill, "gone"),
                    decode=names.get(handoff.decode, "gone"),
                    tokens=handoff.num_tokens + handoff.num_emitted,
                    age_s=0.0 if owner is None else round(self._clock() - owner.since_s, 1),
                )
            )
        return rows


def stage_of(handoff: GatewayHandoff, at_prefill: str, at_decode: str) -> str:
    """Name the stage of an attempt by what gateway and workers said last; the workers' word is half a second old."""
    if at_decode == "revoked":
        return "revoked"
    if handoff.phase is GatewayPhase.STREAMING:
        return "ending" if handoff.answered else "decode"
    if handoff.phase is GatewayPhase.OFFERED:
        return "reserve"
    if at_decode == "verifying" or at_prefill == "sent":
        return "verify"
    return {"": "queue", "waiting": "queue", "running": "prefill"}.get(at_prefill, "revoked")


def _worker_row(view: WorkerView, tenant_of: Mapping[AttemptId, int]) -> WorkerRow:
    cells = []
    if view.map is not None:
        attempts = view.map.attempts()
        for run in view.map.runs:
            attempt = attempts[run.holder] if run.holder >= 0 else None
            tenant = NOBODY_SEEN if attempt is None else tenant_of[attempt]
            kept = run.holder == NOBODY and run.state == _SEALED
            state = DRAWN.index(CACHED) if kept else run.state
            cells.append((state, tenant, 0 if attempt is None else attempt.counter, run.num_cells))
    return WorkerRow(
        name=view.name,
        role=view.role,
        id=view.incarnation[:8],
        state=view.state,
        restarts=view.num_restarts,
        pages=0 if view.map is None else view.map.num_pages,
        pages_per_cell=1 if view.map is None else view.map.pages_per_cell,
        counts=view.counts,
        cells=cells,
    )


def _guard_rows(decisions: Mapping[tuple[str, str, str], int]) -> list[GuardRow]:
    answers: dict[tuple[str, str], dict[str, int]] = {
        (guard.name, place): {} for guard in GUARDS.values() for place in guard.places
    }
    for (name, place, answer), count in decisions.items():
        answers.setdefault((name, place), {})[answer] = count
    return [
        GuardRow(name, place, GUARDS[name].fault, GUARDS[name].refuses, given)
        for (name, place), given in answers.items()
        if name in GUARDS
    ]


PAGE = files("kvfence.gateway").joinpath("fence.html").read_bytes()


def _hashes(tag: str) -> str:
    """Allow the page's own script or style by its digest, and no other."""
    bodies = re.findall(rb"<%b>(.*?)</%b>" % (tag.encode(), tag.encode()), PAGE, re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(body).digest()).decode()}'" for body in bodies)


POLICY = (
    f"default-src 'none'; script-src {_hashes('script')}; style-src {_hashes('style')}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
