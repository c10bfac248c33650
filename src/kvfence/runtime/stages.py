"""When each stage of an attempt began, read off the steps of the nodes it passes: no worker can forget to say so.

Workers tell each other and the gateway how long ago each mark was (``wire.frames.Facts``), so that clocks need not
agree; the message's own way is the error. Not for: deciding anything.
"""

import time
from collections.abc import Callable, Container
from weakref import WeakValueDictionary

from msgspec import Struct

from kvfence.core.ids import AttemptId, RequestId
from kvfence.driver.loop import Stepper
from kvfence.protocol.commands import Adopt, Command, Deliver, Finish, Post, Send, StartPrefill, Verify
from kvfence.protocol.events import Event, PassEnded, Submit
from kvfence.protocol.guards import ASKED, GUARDS, Decision, Rules
from kvfence.protocol.messages import Dispatch, Grant, Offer, Sent
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.step import Node, Step
from kvfence.wire.frames import Facts

STAGES: dict[str, tuple[str, str]] = {
    "admit": ("arrived", "admitted"),
    "place": ("admitted", "offered"),
    "reserve": ("offered", "dispatched"),
    "queue": ("dispatched", "prefilling"),
    "prefill": ("prefilling", "computed"),
    "transfer": ("posted", "sent"),
    "verify": ("verifying", "adopted"),
    "adopt": ("adopted", "first_token"),
    "decode": ("first_token", "ended"),
}
"""Each stage's first and last mark, in order. Transfer runs beside prefill; all others follow each other."""

OBSERVED = "observed:"
"""Stands before a refusal that was counted and not obeyed."""

_MARKS: dict[type[Command], str] = {
    StartPrefill: "prefilling",
    Post: "posted",
    Verify: "verifying",
    Adopt: "adopted",
    Deliver: "first_token",
}
_SENT: dict[type[Struct], str] = {Offer: "offered", Dispatch: "dispatched", Grant: "granted", Sent: "sent"}
_WORKER_MARKS = frozenset({"granted", "prefilling", "posted", "computed", "sent", "verifying", "adopted"})

Clock = Callable[[], int]


def marks_of(event: Event, result: Step) -> list[tuple[AttemptId, str]]:
    """Give the marks that one step makes, by attempt."""
    marks: list[tuple[AttemptId, str]] = []
    if isinstance(event, PassEnded) and isinstance(result.node, PrefillNode):
        marks += ((attempt, "computed") for attempt, _ in event.finished)
    for command in result.commands:
        name = _SENT.get(type(command.message)) if isinstance(command, Send) else _MARKS.get(type(command))
        attempt = getattr(command.message if isinstance(command, Send) else command, "attempt", None)
        if name is not None and isinstance(attempt, AttemptId):
            marks.append((attempt, name))
    return marks


def refusal_of(decision: Decision) -> str:
    """Name a guard's verdict against an attempt; empty where it holds, or where it only defers a re-use of pages."""
    if decision.holds or not GUARDS[decision.guard].refuses:
        return ""
    return f"{OBSERVED if decision.observed else ''}{decision.guard}@{decision.place}"


class Told(Struct):
    """What is known of one attempt. Units: marks on this process's clock, in nanoseconds; the first of a name stays."""

    marks: dict[str, int] = {}
    refusals: dict[str, None] = {}


class StageClock:
    """One worker's marks. Holds: those of attempts that its node knows."""

    def __init__(self, clock_ns: Clock = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._told: dict[AttemptId, Told] = {}

    def watch(self, stepper: Stepper) -> Stepper:
        """Give a stepper that notes what each step says of its attempts."""

        def step(rules: Rules, node: Node, event: Event) -> Step:
            result = stepper(rules, node, event)
            self._note(event, result)
            return result

        return step

    def _note(self, event: Event, result: Step) -> None:
        for attempt, name in marks_of(event, result):
            self._of(attempt).marks.setdefault(name, self._clock_ns())
        for decision in result.decisions:
            refusal = refusal_of(decision)
            if refusal and decision.attempt is not None:
                self._of(decision.attempt).refusals[refusal] = None

    def _of(self, attempt: AttemptId) -> Told:
        return self._told.setdefault(attempt, Told())

    def learn(self, attempt: AttemptId, facts: Facts) -> None:
        """Note what another worker says of an attempt."""
        learn(self._of(attempt), facts, self._clock_ns())

    def facts(self, attempt: AttemptId) -> Facts:
        """Say what is known of an attempt, as ages."""
        told, now_ns = self._of(attempt), self._clock_ns()
        return Facts({name: (now_ns - at) // 1000 for name, at in told.marks.items()}, tuple(told.refusals))

    def keep(self, attempts: Container[AttemptId]) -> None:
        """Forget all attempts but these."""
        self._told = {attempt: told for attempt, told in self._told.items() if attempt in attempts}


def learn(told: "Told | Journey", facts: Facts, now_ns: int) -> None:
    """Note what came with a frame, as far as its names are ours: they go into logs."""
    for name, age_us in facts.ages_us.items():
        if name in _WORKER_MARKS and age_us >= 0:
            told.marks.setdefault(name, now_ns - age_us * 1000)
    told.refusals.update((refusal, None) for refusal in facts.refusals if refusal.removeprefix(OBSERVED) in ASKED)


class Journey(Struct, weakref=True):
    """What becomes known of one generation.

    ``prefill``, ``decode``: the workers it was placed on last. ``ending``: why it ended, as its node said.

    Units:
        marks: by name, on this process's monotonic clock in nanoseconds; of several attempts the first one's.
    """

    marks: dict[str, int] = {}
    refusals: dict[str, None] = {}
    prefill: str = ""
    decode: str = ""
    ending: str = ""
    num_attempts: int = 0

    def intervals(self) -> dict[str, tuple[int, int | None]]:
        """Give each stage that began, with its end where that is known; never negative, though two clocks were read."""
        found: dict[str, tuple[int, int | None]] = {}
        for stage, (first, last) in STAGES.items():
            began, ended = self.marks.get(first), self.marks.get(last)
            if began is not None:
                found[stage] = (began, None if ended is None else max(began, ended))
        return found

    @property
    def furthest(self) -> str:
        """The last stage that began."""
        return next((stage for stage in reversed(STAGES) if STAGES[stage][0] in self.marks), "admit")


class Journeys:
    """The journeys somebody looks at: whoever opened one holds it, and it is forgotten with its holder."""

    def __init__(self, clock_ns: Clock = time.monotonic_ns) -> None:
        self.clock_ns = clock_ns
        self._of_request: WeakValueDictionary[RequestId, Journey] = WeakValueDictionary()
        self._of_attempt: WeakValueDictionary[AttemptId, Journey] = WeakValueDictionary()

    def open(self, request: RequestId, arrived_ns: int) -> Journey:
        """Begin to look at a request."""
        journey = Journey({"arrived": arrived_ns})
        self._of_request[request] = journey
        return journey

    def mark(self, request: RequestId, name: str) -> None:
        """Note a mark of a request that has no attempt yet."""
        journey = self._of_request.get(request)
        if journey is not None:
            journey.marks.setdefault(name, self.clock_ns())

    def place(self, request: RequestId, prefill: str, decode: str) -> None:
        """Note where an attempt goes whose workers run no node."""
        journey = self._of_request.get(request)
        if journey is not None:
            journey.num_attempts += 1
            journey.prefill, journey.decode = prefill, decode

    def end(self, request: RequestId, reason: str) -> None:
        """Note that a request ended, and why; the first reason stays."""
        journey = self._of_request.get(request)
        if journey is not None:
            journey.marks.setdefault("ended", self.clock_ns())
            journey.ending = journey.ending or reason

    def learn(self, attempt: AttemptId, facts: Facts) -> None:
        """Note what a worker says of an attempt."""
        journey = self._of_attempt.get(attempt)
        if journey is not None:
            learn(journey, facts, self.clock_ns())

    def watch(self, stepper: Stepper) -> Stepper:
        """Give a stepper that notes what the gateway's steps say of requests."""

        def step(rules: Rules, node: Node, event: Event) -> Step:
            result = stepper(rules, node, event)
            self._note(event, result)
            return result

        return step

    def _note(self, event: Event, result: Step) -> None:
        journey = self._of_request.get(event.request) if isinstance(event, Submit) else None
        for command in result.commands:
            if isinstance(command, Finish):
                self.end(command.request, command.reason.value)
            elif isinstance(command, Send) and isinstance(command.message, Offer) and journey is not None:
                self._offered(journey, command, command.message)
        for attempt, name in marks_of(event, result):
            at = self._of_attempt.get(attempt)
            if at is not None:
                at.marks.setdefault(name, self.clock_ns())
        for decision in result.decisions:
            of = journey if decision.attempt is None else self._of_attempt.get(decision.attempt)
            refusal = refusal_of(decision)
            if refusal and of is not None:
                of.refusals[refusal] = None

    def _offered(self, journey: Journey, command: Send, offer: Offer) -> None:
        if self._of_attempt.get(offer.attempt) is journey:
            return
        self._of_attempt[offer.attempt] = journey
        journey.num_attempts += 1
        journey.prefill, journey.decode = offer.prefill[:8], command.to[:8]
