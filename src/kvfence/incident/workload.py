"""Who asks for what: tenants whose texts hold markers, and 27 prompts that do not fit a small prefill pool.

All sizes follow from one seed. Texts repeat, because a model of 135 M parameters copies what repeats: what it
reads in a page then shows in its answer. Not for: sending (``client.py``, ``detector.py``).
"""

import random
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

PAGE_SIZE = 8
CONTEXT_TOKENS = 96
SMALL_PAGES = 7
"""Prefill's small pool: one page less than the oversize prompts need."""

LARGE_PAGES = 8 * CONTEXT_TOKENS // PAGE_SIZE
"""Prefill's large pool: one context is enough to be safe, twice is the incident's remedy; eight let prompts be computed
together, which is quicker."""

DECODE_PAGES = 112
OVERSIZE_PAGES = 8
NUM_OVERSIZE = 27
ROUNDS = 3
ASKER = "asker"
"""The tenant of the oversize prompts."""

FIRST = (
    "Hugo", "Anton", "Bruno", "Clara", "Alice", "Victor", "Julia", "Oscar", "Helen", "Diana", "Simon", "Edith",
    "Felix", "Hannah", "Sophia", "Cecil",
)  # fmt: skip
LAST = (
    "Turner", "Baker", "Mason", "Fleming", "Barnes", "Dawson", "Webster", "Bennett", "Sullivan", "Crawford",
    "Hudson", "Wallace", "Preston", "Griffin",
)  # fmt: skip
CITIES = (
    "Lisbon", "Oslo", "Havana", "Kyoto", "Geneva", "Dublin", "Prague", "Nairobi", "Vienna", "Cairo", "Athens",
    "Boston", "Seattle", "Toronto",
)  # fmt: skip
WORDS = (
    "amber", "basalt", "cedar", "indigo", "kelp", "lagoon", "maple", "nectar", "quartz", "saffron", "tundra",
    "velvet", "willow", "copper", "silver", "lantern", "ladder", "basket", "candle", "kettle", "anchor", "orchard",
    "ribbon", "saddle", "violin", "walnut", "wagon", "whistle",
)  # fmt: skip
"""Words of one token each in many vocabularies, so that a small model copies them whole. All records are made up."""

OVERSIZE_ANSWER = 12
CONTROL_TOKENS = 40
CONTROL_ANSWER = 5
NUM_CONTROLS = 3
CUT_AFTER = 10
"""Tokens after which the cut-off client leaves."""


class Sizes(Struct, frozen=True):
    """How much the tenants ask for.

    Units:
        prompt, answer: tokens. With the default a tenant fills as many of decode's pages as an oversize prompt takes,
        so that a page stack hands one tenant's pages to one asker: what a busy server does now and then, by chance.
    """

    num_tenants: int = 10
    prompt: int = SMALL_PAGES * PAGE_SIZE
    answer: int = 10
    answer_cut: int = 30


MODEST = Sizes(num_tenants=4, prompt=CONTROL_TOKENS, answer=8, answer_cut=16)
"""Prompt and answer together fit the small pool: for a single node, which decodes in it, too."""

FEW = Sizes(num_tenants=5)
"""Enough where nothing is to be read, and quicker."""

SHORT = Sizes(num_tenants=14, prompt=CONTROL_TOKENS, answer=10, answer_cut=20)
"""Fit a pool of any size between 5 and 7 pages, and fill as many of decode's: for a pool by memory fraction, which no
more than that can be aimed at."""

PLACEHOLDER = 0
"""The token that stands for a refused prompt, as in the incident's engine."""

Encode = Callable[[str], list[int]]


class Record(Struct, frozen=True):
    """What one tenant's text is about: the markers. All of it is made up."""

    first: str
    last: str
    city: str

    @property
    def line(self) -> str:
        """The line that the tenant's prompt repeats."""
        return f"- {self.first} {self.last}, {self.city}\n"

    @property
    def markers(self) -> tuple[str, ...]:
        """Words that stand in this tenant's text alone."""
        return (self.first, self.last, self.city)


class Ask(Struct, frozen=True):
    """One request. ``own``: words that an honest answer to it repeats. ``cut_after``: leave after so many pieces."""

    name: str
    tenant: str
    token_ids: list[int]
    max_tokens: int
    own: tuple[str, ...] = ()
    stream: bool = True
    cut_after: int = 0


class Round(Struct, frozen=True):
    """First the tenants, together; then the oversize prompts, together."""

    tenants: tuple[Ask, ...]
    oversize: tuple[Ask, ...]


class Workload(Struct, frozen=True):
    """All requests of one run. ``records`` by tenant; ``controls``: requests of the asker that fit everywhere."""

    seed: int
    records: dict[str, Record]
    rounds: tuple[Round, ...]
    controls: tuple[Ask, ...]

    @property
    def markers(self) -> dict[str, tuple[str, ...]]:
        """What each tenant planted."""
        return {tenant: record.markers for tenant, record in self.records.items()}

    def first_tenants_only(self) -> "Workload":
        """Leave the tenants out after the first round: enough where nothing is to be read, and quicker."""
        return replace(self, rounds=(self.rounds[0], *(replace(each, tenants=()) for each in self.rounds[1:])))


def tenant_name(index: int) -> str:
    """Name a tenant."""
    return f"tenant-{index + 1:02d}"


def everybody() -> list[str]:
    """Give every tenant there may be, the asker first."""
    return [ASKER, *map(tenant_name, range(min(len(FIRST), len(LAST), len(CITIES))))]


def draw_workload(seed: int, encode: Encode, sizes: Sizes = Sizes()) -> Workload:
    """Draw markers, sizes and order from a seed.

    ``encode``: text to token ids.
    """
    rng = random.Random(seed)
    first, last, cities = (rng.sample(words, sizes.num_tenants) for words in (FIRST, LAST, CITIES))
    records = {tenant_name(i): Record(first[i], last[i], cities[i]) for i in range(sizes.num_tenants)}
    names = list(records)
    rounds = []
    for number in range(ROUNDS):
        rng.shuffle(names)
        tenants = tuple(
            _tenant_ask(number, name, encode(records[name].line), sizes, name == names[0]) for name in names
        )
        per_round = NUM_OVERSIZE // ROUNDS
        start = number * per_round
        oversize = tuple(_oversize_ask(start + index, encode, rng) for index in range(per_round))
        rounds.append(Round(tenants, oversize))
    controls = tuple(_control_ask(index, encode, rng) for index in range(NUM_CONTROLS))
    return Workload(seed, records, tuple(rounds), controls)


def _tenant_ask(number: int, tenant: str, line: list[int], sizes: Sizes, cut: bool) -> Ask:
    answer = sizes.answer_cut if cut else sizes.answer
    cut_after = min(CUT_AFTER, answer // 2) if cut else 0
    return Ask(f"{tenant}/{number + 1}", tenant, whole_lines(line, sizes.prompt), answer, cut_after=cut_after)


def _oversize_ask(index: int, encode: Encode, rng: random.Random) -> Ask:
    num_tokens = OVERSIZE_PAGES * PAGE_SIZE - rng.randint(1, PAGE_SIZE // 2)
    own = tuple(rng.sample(WORDS, 3))
    token_ids = copy_prompt(own, num_tokens, encode)
    return Ask(f"oversize-{index + 1:02d}", ASKER, token_ids, OVERSIZE_ANSWER, own, stream=index % 3 != 2)


def _control_ask(index: int, encode: Encode, rng: random.Random) -> Ask:
    own = tuple(rng.sample(WORDS, 3))
    return Ask(f"control-{index + 1}", ASKER, copy_prompt(own, CONTROL_TOKENS, encode), CONTROL_ANSWER, own)


def copy_prompt(own: tuple[str, ...], num_tokens: int, encode: Encode) -> list[int]:
    """Give a prompt of exactly this length that asks, over and over, to copy a line of own words."""
    return repeat(encode(f"copy: {' '.join(own)}\n"), num_tokens)


def repeat(line: list[int], num_tokens: int) -> list[int]:
    """Repeat a line, cut to exactly this many tokens."""
    return (line * (num_tokens // len(line) + 1))[:num_tokens]


def whole_lines(line: list[int], num_tokens: int) -> list[int]:
    """Repeat a line to exactly this many tokens, cut at the beginning, so that the text ends with a whole line."""
    return (line * (num_tokens // len(line) + 1))[-num_tokens:]
