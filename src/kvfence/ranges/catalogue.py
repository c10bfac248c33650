"""Every practice server by name: which guards are away, what goes wrong, and what one will see of it.

Not for: doing it (``prefill_worker.py``, ``writers.py``). Standard library and msgspec only.
"""

from typing import Literal

from msgspec import Struct

from kvfence.driver.mutants import INCIDENT_LACKS
from kvfence.protocol.guards import Rules

Fault = Literal[
    "none",
    "placeholder",
    "late",
    "torn",
    "stale-source",
    "misdirected",
    "corrupt",
    "truncated",
    "refusal-as-end",
    "slow",
]

_VERIFYING = ("stamp-at-adopt", "stamp-at-read@decode", "digest-matches")
"""What compares pages with what was promised of them."""


PAGES_MIN = 8
"""Batches of fewer pages go right where only some go wrong, so that short requests are answered as they should be."""


class Range(Struct, frozen=True):
    """One practice server.

    ``lacks``: the guards that are away. ``fault``: what its workers do wrong. ``teaches``: for lists; ``shows``: what
    whoever asks it will see. ``rate``: the default share of what can go wrong that does; None where it always does.

    Units: chunk_tokens: new prompt tokens in one pass, whose pages are one batch; prefill_rate: the practice model's
        prompt tokens a second.
    """

    name: str
    lacks: tuple[str, ...]
    fault: Fault
    teaches: str
    shows: str
    rate: float | None = None
    chunk_tokens: int = 512
    prefill_rate: float = 20_000

    @property
    def leaks(self) -> bool:
        """Is it made to go wrong?"""
        return self.fault != "none"

    @property
    def default_rate(self) -> float:
        """What its workers are told."""
        return 1.0 if self.rate is None else self.rate

    def rules(self, put_back: tuple[str, ...] = ()) -> Rules:
        """Give its rule set; ``put_back``: guards to have all the same, for tests."""
        away = Rules.without(*self.lacks)
        back = Rules.without(*put_back).absent if put_back else frozenset()
        return Rules(away.absent - back)


_ALL = (
    Range(
        "incident",
        INCIDENT_LACKS,
        "placeholder",
        "a prompt larger than prefill's pool is answered from pages that others filled",
        "prompts above the prefill pool get HTTP 200, quickly, with other tenants' text in it",
    ),
    Range(
        "late-write",
        ("quarantine-on-revoke", "hold-source", "batch-bound"),
        "late",
        "pages of a request that was given up are used again while its last writes are on their way",
        "give up long requests before their first token: the next ones' answers hold words of those",
        rate=0.5,
        chunk_tokens=128,
        prefill_rate=4_000,
    ),
    Range(
        "torn-write",
        ("digest-matches",),
        "torn",
        "a transfer that ended well, of which half of every page never landed",
        "some answers to longer prompts are half another tenant's",
        rate=0.3,
    ),
    Range(
        "stale-reference",
        _VERIFYING,
        "stale-source",
        "a hand-off that refers to pages of another, since released or used again",
        "some answers to longer prompts are another tenant's altogether",
        rate=0.3,
    ),
    Range(
        "misdirected",
        _VERIFYING,
        "misdirected",
        "a batch that lands in the pages of a request that is running",
        "under load, some answers change over to another tenant's text, and others read what was there before",
        rate=0.3,
    ),
    Range(
        "corrupt",
        ("digest-matches",),
        "corrupt",
        "bits that change on the way, under the right stamp",
        "some answers to longer prompts are garbled: nobody's text",
        rate=0.6,
    ),
    Range(
        "truncated",
        ("count-matches", *_VERIFYING),
        "truncated",
        "fewer pages sent than were granted, so that the end of a prompt is whatever was there",
        "prompts that fill more than half of prefill's pool are answered from other tenants' text",
    ),
    Range(
        "empty-200",
        ("fits@gateway",),
        "refusal-as-end",
        "a refusal that is taken for the end of an answer",
        "prompts above the prefill pool get HTTP 200 without a word",
    ),
    Range(
        "slow-refusal",
        ("fits@gateway",),
        "slow",
        "a refusal that nobody hears until a time-out: in reality after minutes",
        "prompts above the prefill pool get HTTP 400, but only after --refusal-after-s",
    ),
    Range(
        "sound",
        (),
        "none",
        "the control: the same pools with every guard on",
        "prompts above the prefill pool get HTTP 400; no answer holds anybody else's text",
    ),
)

RANGES = {each.name: each for each in _ALL}
