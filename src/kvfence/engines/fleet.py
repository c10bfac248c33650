"""The workers of an engine: looked at again and again, measured, and chosen for an attempt.

A worker that was not reached, or is not what it was named as, gets no attempt until it was looked at anew: its limits
may have changed with a restart. Not for: speaking to it (``dialect.py``).
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NewType
from urllib.parse import urlsplit

import httpx
from msgspec import DecodeError, Struct, ValidationError, json

from kvfence.core.errors import EvidenceError, RemoteProtocolError
from kvfence.core.ids import Incarnation
from kvfence.core.request import Request
from kvfence.core.settings import Role
from kvfence.engines.dialect import Call, Dialect, Pair, Spot
from kvfence.engines.door import post
from kvfence.engines.measured import Measured, smallest, sums
from kvfence.protocol.admission import Capacity, Fit
from kvfence.protocol.routing import Need, WorkerLoad, place
from kvfence.runtime.generation import WorkerState


class Looking(Struct, frozen=True):
    """How often workers are looked at, in seconds; ``again_s``: those that were not there.

    Both engines answer from beside their model's loop: one that takes longer is not one to wait for, and one that does
    not answer two looks on end is not coming back to what it has open.
    """

    every_s: float = 5.0
    again_s: float = 1.0
    timeout_s: float = 10.0


MISSED_MAX = 2
TOKENIZE = "/tokenize"


class _Tokens(Struct):
    tokens: list[int]


WorkerName = NewType("WorkerName", str)


class Worker(Struct):
    """One worker. ``problem``: why it gets nothing now, or empty. ``watchers``: set when it is given up.

    Units: promised: tokens of open attempts. num_missed: looks on end that it did not answer.
    """

    name: WorkerName
    role: Role
    url: str
    measured: Measured | None = None
    problem: str = "not looked at yet"
    promised: int = 0
    num_open: int = 0
    num_lost: int = 0
    num_missed: int = 0
    watchers: set[asyncio.Event] = set()

    @property
    def healthy(self) -> bool:
        """May it be given an attempt?"""
        return not self.problem


class Sample(Struct, frozen=True):
    """A text and its tokens by the gateway's tokenizer; workers are asked for theirs."""

    text: str
    token_ids: Sequence[int]


class Fleet:
    """All workers of both roles. ``sample``: None: tokenizers are not compared. Owner: one event loop."""

    def __init__(
        self,
        dialect: Dialect,
        http: httpx.AsyncClient,
        urls: Mapping[Role, Sequence[str]],
        sample: Sample | None = None,
        looking: Looking | None = None,
    ) -> None:
        self._dialect, self._http, self._sample, self._looking = dialect, http, sample, looking or Looking()
        self._workers = {
            name: Worker(name, role, url.rstrip("/"))
            for role, each in urls.items()
            for number, url in enumerate(each)
            for name in [WorkerName(f"{role}-{number}")]
        }
        self._tasks: list[asyncio.Task[None]] = []
        self.counts: Counter[tuple[str, str, str]] = Counter()

    async def start(self) -> None:
        """Look at every worker once, then go on looking."""
        await asyncio.gather(*(self._look(worker) for worker in self._workers.values()))
        self._tasks = [asyncio.create_task(self._watch(worker)) for worker in self._workers.values()]

    async def close(self) -> None:
        """Stop looking."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def problems(self) -> list[str]:
        """Say what is wrong with workers, by name and URL."""
        return [f"{each.name} ({each.url}): {each.problem}" for each in self._workers.values() if each.problem]

    # ---- looking

    async def _watch(self, worker: Worker) -> None:
        while True:
            await asyncio.sleep(self._looking.every_s if worker.healthy else self._looking.again_s)
            await self._look(worker)

    async def _look(self, worker: Worker) -> None:
        problem = ""
        try:
            async with asyncio.timeout(self._looking.timeout_s):
                measured = await self._dialect.look(self._http, worker.url, worker.role)
                if worker.measured is None and self._sample is not None:
                    await self._compare(worker, measured.model, self._sample)
                worker.measured = measured
        except EvidenceError as error:
            problem, worker.measured = str(error), None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            problem = f"not reached ({type(error).__name__})"
        except TimeoutError:
            problem = f"no answer within {self._looking.timeout_s:g} s"
        if problem and worker.healthy:
            self.note_lost(worker.name, problem)
        worker.problem = problem
        worker.num_missed = worker.num_missed + 1 if problem else 0
        if worker.num_missed == MISSED_MAX:
            for watcher in worker.watchers:
                watcher.set()

    async def _compare(self, worker: Worker, model: str, sample: Sample) -> None:
        """Refuse a worker that reads token ids otherwise than the gateway writes them; one that cannot say is taken.

        Raises:
            EvidenceError: its tokenizer gives other tokens.
        """
        body = {"model": model, "prompt": sample.text, "add_special_tokens": False}
        reply = await post(self._http, Call(worker.url + TOKENIZE, json.encode(body)))
        try:
            tokens = json.decode(reply.body, type=_Tokens).tokens if reply.status == 200 else None
        except (DecodeError, ValidationError):
            tokens = None
        if tokens is not None and tokens != list(sample.token_ids):
            raise EvidenceError("its tokenizer is not that of --model: it would read other words than were asked")

    def note_lost(self, name: str, problem: str = "did not answer a request") -> None:
        """Give a worker nothing until it was looked at again."""
        worker = self._workers[WorkerName(name)]
        worker.problem = problem
        worker.num_lost += 1

    def note(self, name: str, event: str) -> None:
        """Count what happened at a worker."""
        self.counts[self._workers[WorkerName(name)].role, name, event] += 1

    # ---- measures

    def sums(self, num_tokens: int, max_tokens: int) -> tuple[Fit, ...]:
        """Give every sum over the smallest limits of each role.

        Raises:
            RemoteProtocolError: a role was not measured yet.
        """
        return sums(self._smallest("prefill"), self._smallest("decode"), num_tokens, max_tokens)

    @property
    def capacity(self) -> Capacity:
        """Give the context and the smallest pools, in decode's pages.

        Raises:
            RemoteProtocolError: a role was not measured yet.
        """
        prefill, decode = self._smallest("prefill"), self._smallest("decode")
        page = decode.page_size
        return Capacity(page, decode.total_max, prefill.pool // page, decode.pool // page)

    def _smallest(self, role: Role) -> Measured:
        measured = [each.measured for each in self._of(role) if each.measured is not None]
        if not measured:
            raise RemoteProtocolError(f"no {role} worker was measured yet")
        return smallest(measured)

    def _of(self, role: Role) -> list[Worker]:
        return [each for each in self._workers.values() if each.role == role]

    def states(self) -> tuple[WorkerState, ...]:
        """Show every worker, ready or not."""
        return tuple(
            WorkerState(
                each.role,
                each.measured.version if each.measured is not None else "",
                "ready" if each.healthy else each.problem,
                each.measured.pool if each.measured is not None else 0,
                each.num_lost,
                each.name,
            )
            for each in self._workers.values()
        )

    # ---- placing

    def place(self, request: Request, tried: Sequence[Pair] = ()) -> Pair | None:
        """Take a pair with room, or with the shortest queues; one that was tried is not taken again, nor are its
        workers where there are others. None: there is no other pair."""
        used = {spot.name for pair in tried for spot in (pair.prefill, pair.decode)}
        sides = [self._fresh("prefill", used), self._fresh("decode", used)]
        if not all(sides):
            return None
        page = max(each.measured.page_size for side in sides for each in side if each.measured is not None)
        loads = [tuple(_load(each, page) for each in side) for side in sides]
        num_pages = -(-len(request.token_ids) // page)
        placement = place(loads[0], loads[1], Need(num_pages, num_pages + 1))
        if placement is None:
            return None
        pair = Pair(self._spot(placement.prefill), self._spot(placement.decode))
        return (
            None if (pair.prefill.name, pair.decode.name) in {(p.prefill.name, p.decode.name) for p in tried} else pair
        )

    def _fresh(self, role: Role, used: set[str]) -> list[Worker]:
        healthy = [each for each in self._of(role) if each.healthy and each.measured is not None]
        return [each for each in healthy if each.name not in used] or healthy

    def _spot(self, name: str) -> Spot:
        worker = self._workers[WorkerName(name)]
        if worker.measured is None:
            raise RemoteProtocolError(f"{name} was not measured yet")
        return Spot(worker.name, worker.url, urlsplit(worker.url).hostname or "", worker.measured)

    @contextmanager
    def holding(self, pair: Pair, request: Request) -> Iterator[asyncio.Event]:
        """Count a request's tokens as promised while the block runs. Yields: set when one of the two is given up."""
        given_up = asyncio.Event()
        needs = (
            (pair.prefill.name, len(request.token_ids)),
            (pair.decode.name, len(request.token_ids) + request.max_tokens),
        )
        with contextlib.ExitStack() as stack:
            for name, num_tokens in needs:
                worker = self._workers[WorkerName(name)]
                worker.promised += num_tokens
                worker.num_open += 1
                worker.watchers.add(given_up)
                stack.callback(_give_back, worker, num_tokens, given_up)
            yield given_up


def _give_back(worker: Worker, num_tokens: int, given_up: asyncio.Event) -> None:
    worker.watchers.discard(given_up)
    worker.promised -= num_tokens
    worker.num_open -= 1


def _load(worker: Worker, page: int) -> WorkerLoad:
    pool = worker.measured.pool if worker.measured is not None else 0
    return WorkerLoad(Incarnation(worker.name), (pool - worker.promised) // page, worker.promised, worker.num_open)
