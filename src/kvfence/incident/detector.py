"""The detector: a process that has a URL and its own requests, and judges answers by their bodies and times alone.

``python -m kvfence.incident.detector``: one line of JSON on stdin (``Plan``); then ``next`` sends the next group of
oversize prompts and is answered by one line, ``end`` by a ``Report``. It knows which markers were planted, as whoever
plants them does. It sees neither the tenants' requests nor the server.
"""

import asyncio
import sys

import httpx
from msgspec import Struct, json

from kvfence.incident.alarms import Judged, best_rate, find_exact, find_fuzzy, has_amnesia, too_fast
from kvfence.incident.client import Answer, Door, ask
from kvfence.incident.workload import Ask


class Plan(Struct, frozen=True):
    """What the detector is to send. ``planted``: markers by tenant."""

    door: Door
    controls: tuple[Ask, ...]
    groups: tuple[tuple[Ask, ...], ...]
    planted: dict[str, tuple[str, ...]]


class Report(Struct, frozen=True):
    """What it saw and thinks. Units: rate in prompt tokens a second, the best the server has shown."""

    answers: tuple[Answer, ...]
    judged: tuple[Judged, ...]
    controls: tuple[Answer, ...]
    rate: float
    controls_echo: bool


class Detector:
    """One run of the detector."""

    def __init__(self, plan: Plan, client: httpx.AsyncClient) -> None:
        self._plan, self._client = plan, client
        self._times: list[list[tuple[int, float]]] = []
        self._groups: list[list[Answer]] = []
        self._answers: list[Answer] = []
        self._controls: list[Answer] = []
        self._waiting = list(plan.groups)

    async def calibrate(self) -> None:
        """Ask what fits: how such prompts are answered, and how fast."""
        for group in (self._plan.controls[:1], self._plan.controls[1:]):
            await self._measure(group)

    async def _measure(self, group: tuple[Ask, ...]) -> None:
        answers = await self._send(group)
        self._controls += answers
        self._times.append([(a.num_tokens, a.ttft_s) for a in answers if a.ttft_s is not None])

    async def send_next(self) -> int:
        """Send the next oversize prompts together; give how many."""
        answers = await self._send(self._waiting.pop(0))
        self._groups.append(answers)
        self._answers += answers
        return len(answers)

    async def _send(self, requests: tuple[Ask, ...]) -> list[Answer]:
        return list(await asyncio.gather(*(ask(self._client, self._plan.door, each) for each in requests)))

    async def report(self) -> Report:
        """Measure the rate once more, then judge everything with the best rate."""
        if any(answer.status == 200 for answer in self._answers):
            await self._measure(self._plan.controls[1:])
        rate = best_rate(self._times)
        fast: set[str] = set()
        for answers in self._groups:
            group = [(a.name, a.num_tokens, a.ttft_s) for a in answers if a.ttft_s is not None and a.status == 200]
            fast |= too_fast(group, rate)
        own = {each.name: each.own for each in (*self._plan.controls, *(a for g in self._plan.groups for a in g))}
        echo = bool(self._controls) and not any(has_amnesia(a.text, own[a.name]) for a in self._controls)
        judged = tuple(self._judge(a, own[a.name], echo=echo, fast=a.name in fast) for a in self._answers)
        return Report(tuple(self._answers), judged, tuple(self._controls), rate, echo)

    def _judge(self, answer: Answer, own: tuple[str, ...], *, echo: bool, fast: bool) -> Judged:
        status = answer.status != 200 or answer.error_frames > 0
        if status:
            return Judged(answer.name, status=True)
        exact = find_exact(answer.text, self._plan.planted)
        fuzzy = () if exact else find_fuzzy(answer.text, self._plan.planted, _likeness, own)
        amnesia = echo and has_amnesia(answer.text, own)
        return Judged(answer.name, False, exact, fuzzy, amnesia, fast)


def _likeness(word: str, marker: str) -> float:
    from rapidfuzz.fuzz import ratio

    return float(ratio(word, marker))


async def _main() -> None:
    loop = asyncio.get_running_loop()
    plan = json.decode(await loop.run_in_executor(None, sys.stdin.buffer.readline), type=Plan)
    async with plan.door.client() as client:
        detector = Detector(plan, client)
        await detector.calibrate()
        _say({"ready": True})
        while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
            if line.strip() == b"next":
                _say({"sent": await detector.send_next()})
            elif line.strip() == b"end":
                _say(await detector.report())
                return


def _say(document: object) -> None:
    sys.stdout.buffer.write(json.encode(document) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(_main())
