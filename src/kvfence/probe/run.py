"""A run: its phases in order, each within its share, and the record of all that came back, also where it ended early.

Not for: what the phases send (``phases/``), what follows from the record (``verdict.py``).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import httpx
from msgspec import Struct

from kvfence.probe.budget import Budget
from kvfence.probe.client import CONNECT_S, Client, tls_words
from kvfence.probe.door import Door
from kvfence.probe.exchange import Cut, Phase, Record, Target
from kvfence.probe.markers import draw_markers
from kvfence.probe.phases import abort, calibrate, oversize, prefix, pressure, replay, seed
from kvfence.probe.plan import WEIGHTS, Plan, make_plan
from kvfence.probe.stage import Ended, Stage
from kvfence.probe.words import LISTS

PHASES: dict[Phase, Callable[[Stage], Awaitable[None]]] = {
    Phase.CALIBRATE: calibrate.run,
    Phase.SEED: seed.run,
    Phase.OVERSIZE: oversize.run,
    Phase.ABORT: abort.run,
    Phase.PRESSURE: pressure.run,
    Phase.PREFIX: prefix.run,
    Phase.REPLAY: replay.run,
}


class Run(Struct, frozen=True, kw_only=True):
    """What is to be run. Calibration always is: nothing can be judged without it."""

    door: Door
    budget: Budget
    seed: int
    phases: tuple[Phase, ...] = tuple(PHASES)

    @property
    def ordered(self) -> tuple[Phase, ...]:
        """Give the phases in the order of a run."""
        return tuple(phase for phase in PHASES if phase in self.phases or phase is Phase.CALIBRATE)


Watch = Callable[[Stage], None]


def _no_watch(_: Stage) -> None:
    """Look at nothing."""


class Look(Struct, frozen=True):
    """What a first look shows: the models' names, and the context of the one that is asked.

    ``hindrance``: where no model is named and no connection can be made, why.
    """

    names: tuple[str, ...] = ()
    context: int | None = None
    hindrance: str = ""


async def look(door: Door) -> Look:
    """Ask what models there are and how long the named one's context is; costs no token."""
    async with Client(door, 1) as client:
        answer = await client.get("/models", door.tenants[0])
    if answer is None and not door.model and (hindrance := await _hindrance(door)):
        return Look(hindrance=hindrance)
    found = answer.get("data") if isinstance(answer, dict) else None
    models = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    names = [each["id"] for each in models if isinstance(each.get("id"), str)]
    asked = door.model or (names[0] if names else "")
    context = next((calibrate.context_of(each) for each in models if each.get("id") == asked), None)
    return Look(tuple(names), context)


async def _hindrance(door: Door) -> str:
    """Say what keeps a connection from being made, TLS included; no key is sent, and no answer matters."""
    async with httpx.AsyncClient(verify=door.verify, trust_env=False, timeout=CONNECT_S) as http:
        try:
            await http.head(door.base_url)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return tls_words(error) or "is the server up, and is this its address? see --base-url"
        except httpx.HTTPError:
            return ""
    return ""


async def probe(run: Run, context: int | None = None, watch: Watch = _no_watch) -> Record:
    """Carry a run out; give its record, whatever ended it. ``context``: what ``look`` said, or the caller knows."""
    markers = draw_markers(run.seed, run.door.tenants)
    began_s = time.monotonic()
    async with Client(run.door, run.budget.concurrency) as client:
        stage = Stage(client, run.budget, markers, run.seed)
        client.on_send = lambda _: stage.tally.sent(stage.phase)
        stage.changed = lambda: watch(stage)
        stage.plan = make_plan(run.budget, run.ordered, context)
        end: Ended | None = None
        try:
            await _phases(stage, run.ordered)
        except Ended as ended:
            end = ended
        except asyncio.CancelledError:
            end = Ended(Cut.STOPPED, "it was stopped")
    return record_of(stage, end, time.monotonic() - began_s)


async def _phases(stage: Stage, phases: Sequence[Phase]) -> None:
    for index, phase in enumerate(phases):
        stage.phase = phase
        stage.phase_ends_s = _time_share(stage, phases[index:])
        stage.changed()
        await PHASES[phase](stage)
        if phase is Phase.CALIBRATE:
            stage.plan = _replan(stage, phases)
    if Phase.OVERSIZE in phases:
        stage.phase, stage.phase_ends_s = Phase.OVERSIZE, None
        await oversize.wait_out(stage)


def _time_share(stage: Stage, phases: Sequence[Phase]) -> float | None:
    """Give when this phase's time is over: its part of what is left, so that the later ones have theirs."""
    left = stage.deadline.left_s
    if left is None:
        return None
    weights = [WEIGHTS[phase] for phase in phases]
    return stage.client.now_s + 0.9 * left * weights[0] / sum(weights)


def _replan(stage: Stage, phases: Sequence[Phase]) -> Plan:
    """Divide again with the real limit: shares of later phases follow from what prompts really cost."""
    return make_plan(stage.budget, phases, stage.calibration.likely_limit)


def record_of(stage: Stage, end: Ended | None, wall_s: float) -> Record:
    """Give the record of a stage as it stands."""
    texts: dict[str, dict[str, None]] = {tenant: {} for tenant in stage.tenants}
    for each in stage.exchanges:
        if each.ask.phase is Phase.SEED:
            texts[each.ask.tenant][each.ask.prompt] = None
    door = stage.client.door
    return Record(
        calibration=stage.calibration,
        exchanges=tuple(stage.exchanges),
        planted=stage.markers.planted,
        texts={tenant: tuple(found) for tenant, found in texts.items()},
        words=LISTS,
        target=Target(
            url=door.base_url,
            model=door.model,
            path=stage.client.api.path,
            keys=door.key_names,
            headers=door.header_names,
            ca=door.ca,
            insecure=door.verify is False,
        ),
        cut=end.cut if end else None,
        cut_why=end.why if end else "",
        seed=stage.seed,
        wall_s=wall_s,
    )
