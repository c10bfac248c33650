"""The incident's prompt: a ladder of lengths round every limit, each rung after other tenants have filled the pages.

Where the limit that matters is hidden (prefill's pool, say), calibration sees none: everything up to decode's limit is
answered. The first rungs are therefore spread over all lengths; where answers lose their own prompt, the ladder looks
closer, and most rungs stand there. Seeds stay below that place: a prompt that is never computed fills no page.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from math import log
from operator import itemgetter

from msgspec.structs import replace

from kvfence.probe.client import Patience
from kvfence.probe.detectors.slow_refusal import slow_refusals
from kvfence.probe.exchange import Exchange, Phase
from kvfence.probe.phases.limits import ANSWER_TOKENS as FEWEST
from kvfence.probe.phases.limits import CEILING, GROWTH, WAIT_S, patience_beyond
from kvfence.probe.phases.seed import PAGE_SIZES, seeds
from kvfence.probe.plan import ANSWER_TOKENS
from kvfence.probe.stage import HURRIED_S, PATIENCE_S, Canary, Stage, echoes, is_unanswered

SPREAD = (0.97, 0.8, 0.65, 0.5, 0.88, 0.72, 0.57, 0.42, 0.93, 0.34)
BEYOND = (1.02, 1.1, 1.5)
UNKNOWN_LIMIT = 512
RUNGS_TOGETHER = 3
MARKERS_IN_TURN = 4
"""Few, so that each is soon measured and rungs stand where they are meant to."""

LOST_ECHOES = 0.2
"""How often an answer to a lost prompt shows it all the same: read from one's own earlier pages."""

LOST_EVIDENCE = 2.0
"""The log likelihood ratio from which a place counts as the one where prompts are lost: one miss of a model that
repeats nine prompts of ten, three of one that repeats six."""


class Ladder:
    """Which lengths come next, and what is known of the place where prompts are lost.

    ``lost``: the shortest prompt answered without a trace of it; ``kept``: the longest below it whose answer showed it.
    An answer that shows its prompt proves little (it may be read from one's own earlier pages), the other much.
    """

    def __init__(self, stage: Stage) -> None:
        calibration = stage.calibration
        self.stage = stage
        self.limit = calibration.likely_limit or UNKNOWN_LIMIT
        self.kept, self.lost = 0, self.limit + 1
        self._named: int | None = None
        self._seen: list[tuple[int, bool]] = []
        echoed, asked = calibration.echoes or (0, 0)
        self._echo_rate = (echoed + 1) / (asked + 2)
        self._next = self._lengths()

    @property
    def answer_tokens(self) -> int:
        """Give how long answers may be."""
        return max(FEWEST, min(ANSWER_TOKENS, self.limit // 8))

    @property
    def is_hidden(self) -> bool:
        """Are prompts lost below the limit?"""
        return self.lost <= self.limit

    @property
    def seed_tokens(self) -> int:
        """Give the length of seeds: what is surely computed, a little less."""
        known = (self.lost if self.is_hidden else self.limit) - 1 - self.answer_tokens
        return max(32, self.stage.below_hung(known))

    @property
    def requests_left(self) -> int:
        """Give how many may be sent; one stays for ``wait_out``."""
        return self.stage.requests_left - (self.stage.calibration.unanswered_tokens is not None)

    def patience(self, height: int) -> Patience:
        """Wait long, until a prompt was waited for in vain: a length that was never measured may lie above that."""
        unanswered = self.stage.calibration.unanswered_tokens
        if unanswered is None:
            return Patience(PATIENCE_S)
        return patience_beyond(self.stage, height, WAIT_S if height < unanswered else HURRIED_S)

    def take(self, count: int) -> list[int]:
        """Give the next rungs."""
        return [next(self._next) for _ in range(count)]

    def learn(self, heard: Iterable[Exchange]) -> None:
        """Look where own prompts begin to be lost: above that place they are seldom shown, below as in calibration."""
        heard = list(heard)
        for each in heard:
            height = each.prompt_tokens or each.ask.num_tokens
            self._learn_limit(each, height or 0)
            if each.trouble is None and height:
                self._seen.append((height, echoes(each)))
        self._learn_unanswered(heard)
        self.lost = lost_from(self._seen, self._echo_rate) or self.limit + 1
        self.kept = max((height for height, echoed in self._seen if echoed and height < self.lost), default=0)

    def _learn_unanswered(self, heard: list[Exchange]) -> None:
        """Take the shortest prompt that was waited for in vain; a shorter one may only have stood behind it."""
        calibration = self.stage.calibration
        answered = max([calibration.limit_low or 0, *(height for height, _ in self._seen)])
        waited = [each.ask.num_tokens or 0 for each in heard if is_unanswered(each)]
        waited = [height for height in waited if height > answered]
        if waited:
            shortest = min([*waited, calibration.unanswered_tokens or CEILING])
            self.stage.calibration = replace(calibration, unanswered_tokens=shortest)

    def _learn_limit(self, heard: Exchange, height: int) -> None:
        """Where calibration found no end: a refusal may name the limit, and an answer at it says that it lies above."""
        limit = self.limit
        if self.stage.calibration.limit_tokens is not None:
            return
        named = heard.limit_tokens
        if named is not None:
            self._named = min(named, self._named or named)
            self.limit = self._named
        elif heard.is_answer and height >= limit and not self._named and self.stage.calibration.limit_high is None:
            self.limit = min(CEILING, limit * GROWTH)
        if self.limit != limit:
            self._next = chain([self.limit], self._lengths())

    def _lengths(self) -> Iterator[int]:
        """Every limit first, then spread; from then on by turns round the lost place, the limits and pages."""
        limit, fixed = self.limit, list(self._fixed())
        yield from (max(16, int(limit * share)) for share in SPREAD[:4])
        yield from (limit, limit - 1, limit + 1)
        yield from self._unsearched()
        number = 0
        while True:
            if self.is_hidden:
                yield from self._inside(number)
            if not self.is_hidden or number % 3 == 2:
                yield fixed[number % len(fixed)]
            number += 1

    def _unsearched(self) -> Iterator[int]:
        """Where calibration ended between a prompt that was answered and one that was not."""
        low, high = self.stage.calibration.limit_low, self.stage.calibration.limit_high
        if self.stage.calibration.limit_tokens is None and low is not None and high is not None:
            yield from ((low + high) // 2, (low + 3 * high) // 4)

    def _inside(self, number: int) -> Iterator[int]:
        """Between the lost place and the limit: bisect its edge, touch it, fill the inside."""
        low, lost, limit = self.kept, self.lost, self.limit
        if lost - low > 1 and number % 2 == 0:
            yield (low + lost) // 2
        page = PAGE_SIZES[number % len(PAGE_SIZES)]
        yield from (lost, min(limit, lost + page), self.stage.rng.randint(lost, limit))

    def _fixed(self) -> Iterator[int]:
        limit, advertised = self.limit, self.stage.calibration.advertised_tokens
        for share, page in zip(SPREAD[4:], (*PAGE_SIZES, *PAGE_SIZES), strict=False):
            yield max(16, int(limit * share))
            yield from (max(16, limit - limit % page + step) for step in (0, -1, 1))
        yield from (int(limit * share) for share in BEYOND)
        if advertised is not None and advertised != limit:
            yield from (advertised - 1, advertised, advertised + 1, int(advertised * 1.05))


def lost_from(seen: Iterable[tuple[int, bool]], echo_rate: float) -> int | None:
    """Give the shortest prompt of the likeliest place from which on prompts are lost; none where chance explains it.

    Args:
        seen: prompts' lengths, and whether the answer showed its prompt.
        echo_rate: how often this model shows a prompt that it has, in (0, 1).
    """
    if echo_rate <= LOST_ECHOES:
        return None
    missed, shown = log((1 - LOST_ECHOES) / (1 - echo_rate)), log(LOST_ECHOES / echo_rate)
    evidence, best, place = 0.0, LOST_EVIDENCE, None
    for height, group in groupby(sorted(seen, reverse=True), key=itemgetter(0)):
        evidence += sum(shown if echoed else missed for _, echoed in group)
        if evidence >= best:
            best, place = evidence, height
    return place


async def run(stage: Stage) -> None:
    """Climb: seeds of other tenants together, then a few rungs together."""
    ladder = Ladder(stage)
    number = 0
    while (left := ladder.requests_left) >= 2 and stage.has_room(2, ladder.seed_tokens + ladder.limit):
        asker = stage.tenants[number % len(stage.tenants)]
        fillers = stage.others(asker)[: max(1, left // 2)]
        rungs = ladder.take(min(RUNGS_TOGETHER, left - len(fillers)))
        await stage.send_all(seeds(stage, fillers, ladder.seed_tokens, number, "reseed"))
        heard = await stage.send_all([_rung(ladder, asker, height, number) for height in rungs])
        ladder.learn(heard)
        stage.lost_tokens = (ladder.lost + ladder.limit) // 2 if ladder.is_hidden else None
        number += 1


async def wait_out(stage: Stage) -> None:
    """Ask once more what was waited for in vain, and wait as long as engines take to refuse it.

    The last of a run and alone: until it is refused the server may answer nobody. Not as a stream, whose status is told
    before its refusal. Where a refusal took that long already, nothing is left to learn.
    """
    height = stage.calibration.unanswered_tokens
    if height is not None and stage.has_room(1, height) and not slow_refusals(stage.exchanges):
        rung = _rung(Ladder(stage), stage.tenants[0], height, 0)
        await stage.send(replace(rung, stream=False, patience=Patience(PATIENCE_S)))


def _rung(ladder: Ladder, asker: str, height: int, number: int) -> Canary:
    return Canary(
        tenant=asker,
        phase=Phase.OVERSIZE,
        role="ladder",
        kind=ladder.stage.lines_kind(number // 2),
        group="ladder",
        num_tokens=height,
        max_tokens=ladder.answer_tokens if height + ladder.answer_tokens <= ladder.limit + FEWEST else FEWEST,
        number=number // len(ladder.stage.tenants) % MARKERS_IN_TURN,
        stream=number % 4 != 3,
        patience=ladder.patience(height),
    )
