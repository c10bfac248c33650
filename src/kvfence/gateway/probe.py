"""Asks the real path for a tiny generation now and then, so that ``/ready`` says what works and not what should.

Not for: liveness (``/health``) or the workers' heartbeats.
"""

import asyncio
import time
from collections.abc import Callable

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from kvfence.core.errors import RemoteProtocolError
from kvfence.core.ids import RequestId, TenantId
from kvfence.core.request import Request, SamplingParams
from kvfence.gateway.logs import describe_crash
from kvfence.gateway.responses import finish_reason
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, Generations

PROBE_TENANT = TenantId("@probe")
"""No key can name it: a tenant's name does not begin with @."""
PROBE_TOKENS = 2
"""One token comes with the hand-off, the second out of a decode pass."""

EVERY_S = 10.0
NO_WORKER_RETRY_S = 0.25
"""A probe that found no worker has run nothing, so it may be repeated soon."""

DEADLINE_S = 30.0


class ProbeState(Struct, frozen=True):
    """What is known of the real path.

    Units:
        age_s: since the last probe that was answered; None before the first.
    """

    ready: bool
    result: str
    age_s: float | None


class Probe:
    """The last probe and its result."""

    def __init__(
        self,
        generations: Generations,
        log: FilteringBoundLogger,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._generations, self._log, self._every_s, self._clock = generations, log, every_s, clock
        self._result = "not probed yet"
        self._ended_s: float | None = None
        self._count = 0

    async def run(self) -> None:
        """Probe for ever."""
        while True:
            reason = await self.probe()
            await asyncio.sleep(NO_WORKER_RETRY_S if reason is EndReason.NO_WORKER else self._every_s)

    async def probe(self) -> EndReason | None:
        """Probe once. A full queue says nothing new: the last result stands. Returns: None if it broke off."""
        try:
            async with asyncio.timeout(DEADLINE_S + self._every_s):
                reason = await self._generate()
        except TimeoutError:
            reason = EndReason.DEADLINE
        except RemoteProtocolError:  # the workers are still starting
            reason = EndReason.NO_WORKER
        except Exception as error:  # noqa: BLE001 - whatever broke, the server is not ready and goes on
            self._log.error("crash", request_id="probe", **describe_crash(error))
            reason = None
        if reason is not EndReason.QUEUE_FULL:
            works = reason is not None and finish_reason(reason) is not None
            self._result = "ok" if works else "broke off" if reason is None else reason.value
            self._ended_s = self._clock()
        return reason

    def state(self) -> ProbeState:
        """Say whether the real path works; a result that is too old says no."""
        age_s = None if self._ended_s is None else round(self._clock() - self._ended_s, 1)
        fresh = age_s is not None and age_s <= 3 * self._every_s + DEADLINE_S
        return ProbeState(fresh and self._result == "ok", self._result, age_s)

    async def _generate(self) -> EndReason | None:
        self._count += 1
        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        request = Request(
            RequestId(f"probe-{self._count}"), PROBE_TENANT, (0,), PROBE_TOKENS, sampling, deadline_s=DEADLINE_S
        )
        async for event in self._generations.generate(request):
            if isinstance(event, EndOut):
                return event.reason
        return None
