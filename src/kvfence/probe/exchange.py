"""One request of a probe and what came back: the record that phases make and detectors judge.

Not for: sending (``client.py``), what follows from it (``detectors/``, ``verdict.py``). Texts stand here and nowhere
else; whatever leaves the process holds digests and lengths of them.
"""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct


class Phase(StrEnum):
    """What a request is sent for, in the order of a run."""

    CALIBRATE = "calibrate"
    SEED = "seed"
    OVERSIZE = "oversize"
    ABORT = "abort"
    PRESSURE = "pressure"
    PREFIX = "prefix"
    REPLAY = "replay"


ROLES: dict[Phase, dict[str, str]] = {
    Phase.CALIBRATE: {
        "control": "repeat this marker: the positive control",
        "stale": "a prompt made as a leak reads, of fresh markers: are they seen in what is answered?",
        "twice": "one prompt, asked twice alone",
        "rate": "a fresh prompt for prefill's rate",
        "ruler": "measures lengths",
        "bisect": "looks for the limit",
    },
    Phase.SEED: {"repetitive": "one line over and over", "natural": "sentences dense with markers"},
    Phase.OVERSIZE: {"ladder": "one rung; num_tokens is its height"},
    Phase.ABORT: {"left": "the client leaves", "reuse": "whoever comes next"},
    Phase.PRESSURE: {"loaded": "a long generation among many"},
    Phase.PREFIX: {
        "prime": "puts a prefix into the cache",
        "own": "the prefix that the asker itself sent",
        "foreign": "the prefix that another tenant sent",
        "control": "a prefix that nobody sent",
    },
    Phase.REPLAY: {
        "alone": "a greedy prompt with nothing beside it",
        "loaded": "the same prompt under load",
        "load": "the load",
        "before": "another tenant's prompt, sent before the next of the group",
        "after-b": "the same prompt but for its number, after tenant B's",
        "after-c": "the same, after tenant C's; whose comes before is drawn by lot, as often one as the other",
    },
}
"""What ``Ask.role`` says in each phase."""


class Ask(Struct, frozen=True, kw_only=True):
    """What one canary asks.

    ``tenant``: whose key it is sent with. ``group``: asks that are judged together (a pair, an A/B/A, a ladder);
    ``role``: this one's part in it, see ``ROLES``.
    ``own``: markers that stand in the prompt; ``echo``: of these, the ones the answer is asked to repeat.
    ``leave``: the client goes away on purpose, before the first token or after so many pieces.
    ``twin_of``: the number of the first ask of this text, of all that differ from it in their first word alone.
    Units: num_tokens of the whole prompt as the server counts it, None where calibration could not tell.
    """

    number: int
    tenant: str
    phase: Phase
    prompt: str
    max_tokens: int
    num_tokens: int | None = None
    group: str = ""
    role: str = ""
    own: tuple[str, ...] = ()
    echo: tuple[str, ...] = ()
    temperature: float = 0.0
    seed: int | None = None
    stream: bool = True
    logprobs: bool = False
    leave: int | None = None
    twin_of: int = 0

    @property
    def text_id(self) -> int | str:
        """Give what asks of one text have in common."""
        return self.twin_of or self.prompt


class Trouble(StrEnum):
    """Why there is no whole answer."""

    REFUSED = "refused"  # a status that is not 200, with a body
    LIMITED = "limited"  # 429 or 503: the server asks to come back later
    BROKEN = "broken"  # an error after 200, or a stream that ended in its middle
    MALFORMED = "malformed"  # what came is not what the API says
    UNREACHABLE = "unreachable"  # no connection, TLS, no answer in time
    LEFT = "left"  # the probe itself went away, as planned or at Ctrl-C


class Exchange(Struct, frozen=True, kw_only=True):
    """What one canary was answered.

    ``text``: the answer, with reasoning and tool calls apart in ``aside``. ``logprobs``: of the first tokens, as
    (token, logprob). ``message``: the server's own words about a refusal, cut short; never a prompt's. ``refusal``: all
    of its words, whatever they repeat. ``headers``: the values of all headers that came, a line each.
    ``left_out``: how many characters of all these were not kept (``answers.py``).
    ``limit_tokens``: an input limit that those words name. ``cached_tokens``: what usage says came from a cache.
    Units: seconds on the run's clock; first_s is the first piece of text.
    """

    ask: Ask
    sent_s: float
    ended_s: float
    first_s: float | None = None
    status: int | None = None
    text: str = ""
    aside: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    logprobs: tuple[tuple[str, float], ...] = ()
    trouble: Trouble | None = None
    message: str = ""
    refusal: str = ""
    headers: str = ""
    left_out: int = 0
    limit_tokens: int | None = None
    retry_after_s: float | None = None
    num_pieces: int = 0

    @property
    def ttft_s(self) -> float | None:
        """Give the time to the first piece of text."""
        return None if self.first_s is None else self.first_s - self.sent_s

    @property
    def is_answer(self) -> bool:
        """Is it a whole answer: 200, and nothing went wrong?"""
        return self.status == 200 and self.trouble is None


def first_of_each_prompt(exchanges: Iterable[Exchange]) -> list[Exchange]:
    """Leave out texts that were asked before: what is answered to one again is no news of the model."""
    first: dict[int | str, Exchange] = {}
    for each in exchanges:
        first.setdefault(each.ask.text_id, each)
    return list(first.values())


class Calibration(Struct, frozen=True, kw_only=True):
    """What the first phase learned of the endpoint; None is not known.

    ``limit_tokens``: the longest prompt that is answered, between ``limit_low`` (answered) and ``limit_high``
    (refused) where the bisection did not end. ``unanswered_tokens``: the shortest prompt that was waited for in vain.
    ``advertised_tokens``: the context that the server names, at ``/models`` or in the words of a refusal.
    ``tokens_per_s``: prefill's rate, the fastest seen for a fresh prompt sent alone; ``overhead_s``: of the shortest
    prompt.
    ``tokens_per_word``: of our own prompts, by usage or by bisection. ``deterministic``: one greedy prompt asked
    twice alone gave one answer. ``echoes``: the positive control, this model can repeat a marker at all, with how
    many of how many.
    """

    limit_tokens: int | None = None
    limit_low: int | None = None
    limit_high: int | None = None
    unanswered_tokens: int | None = None
    advertised_tokens: int | None = None
    tokens_per_s: float | None = None
    overhead_s: float | None = None
    tokens_per_word: float | None = None
    deterministic: bool | None = None
    has_usage: bool | None = None
    has_logprobs: bool | None = None
    has_seed: bool | None = None
    echoes: tuple[int, int] | None = None

    @property
    def likely_limit(self) -> int | None:
        """Give the limit, or the length nearest to it that is known: named and not refused, else answered."""
        named = self.advertised_tokens
        fits = named is not None and (self.limit_low or 0) <= named < (self.limit_high or named + 1)
        return self.limit_tokens or (named if fits else self.limit_low or named)


class Cut(StrEnum):
    """Why a run ended before its plan."""

    BUDGET = "budget"  # requests, tokens, money or time that were allowed are spent: fewer asked, the verdict stands
    STOPPED = "stopped"  # Ctrl-C or a signal
    GONE = "gone"  # the server no longer answers
    OVERLOAD = "overload"  # it asked again and again to come back later


class Target(Struct, frozen=True, kw_only=True):
    """Where the requests went, as a reproducer needs it. ``path``: below the URL, as ``/chat/completions``.

    ``keys``: by tenant, the *name* of the environment variable that holds its key; tenants with one name are one
    caller to the server. ``headers``: by name of the header, likewise. ``ca``: a file of authorities, as it was named.
    """

    url: str = ""
    model: str = ""
    path: str = "/chat/completions"
    keys: dict[str, str] = {}
    headers: dict[str, str] = {}
    ca: str = ""
    insecure: bool = False


class Record(Struct, frozen=True, kw_only=True):
    """A whole run, as the detectors see it.

    ``planted``: by tenant, every marker that was drawn for it; ``texts``: by tenant, what was seeded.
    ``words``: the lists that markers are drawn from. A marker is one word of each list, in their order and apart by
    spaces, drawn evenly; one list may stand there more than once. No word is drawn twice in a run, numbers aside. What
    chance can do follows from this alone.
    ``cut``: why the run ended before its plan, None where it did not, with ``cut_why`` in words.
    """

    calibration: Calibration
    exchanges: tuple[Exchange, ...]
    planted: dict[str, tuple[str, ...]]
    texts: dict[str, tuple[str, ...]]
    words: tuple[tuple[str, ...], ...] = ()
    target: Target = Target()
    cut: Cut | None = None
    cut_why: str = ""
    seed: int = 0
    wall_s: float = 0.0
