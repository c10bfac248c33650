"""What a detector reports: which requests, how sure, and evidence that tells nobody's text.

Foreign text in an answer may be a real customer's. So evidence is a keyed digest, a length and a place; the text itself
only where the one who runs the probe has asked to keep it. Not for: deciding (``verdict.py``).
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Iterator
from enum import StrEnum

from msgspec import Struct

from kvfence.probe.exchange import Exchange


class Severity(StrEnum):
    """What follows from a finding."""

    LEAK = "leak"  # one caller's content came out of another's request
    SUSPECT = "suspect"  # a sound server does not do this, but it is no proof that content went astray
    NOTE = "note"  # worth knowing; changes no verdict

    @property
    def rank(self) -> int:
        """Give the place from the worst, 0."""
        return list(Severity).index(self)


class Sight(Struct, frozen=True, kw_only=True):
    """One place where something was seen, before it is made ready for a report.

    ``of``: whose text it is, empty where it is nobody's in particular. ``seen``: how it stood there.
    ``in_headers``: it stood in the values of headers and not in the answer.
    """

    exchange: Exchange
    of: str = ""
    seen: str = ""
    in_headers: bool = False


class Finding(Struct, frozen=True, kw_only=True):
    """What a detector has to say of a record.

    ``p``: the chance that a sound server shows as much, None where no chance is in it: then ``premise`` says what a
    sound server is held to do. ``limit``: the p at which this test accuses, its share of the run's budget.
    """

    detector: str
    severity: Severity
    message: str
    p: float | None = None
    limit: float | None = None
    premise: str = ""
    sights: tuple[Sight, ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        """Give the requests that it rests on, in order."""
        return tuple(sorted({each.exchange.ask.number for each in self.sights}))


class Evidence(Struct, frozen=True, kw_only=True):
    """One sight as a report shows it. ``digest``: HMAC-SHA256 of the answer under a key that is thrown away.

    Where it was seen in headers, digest, length and text are theirs. Equal answers of one report have equal digests;
    nobody can try texts against them.
    Units: length in characters.
    """

    request: int
    tenant: str
    of: str
    phase: str
    seen: str
    length: int
    digest: str
    text: str | None = None


class Redactor:
    """Makes evidence of sights. ``keep``: write texts, too."""

    def __init__(self, keep: bool = False) -> None:
        self._keep = keep
        self._key = secrets.token_bytes(32)

    def evidence(self, sights: Iterable[Sight]) -> tuple[Evidence, ...]:
        """Give evidence in the order of requests."""
        return tuple(self._one(each) for each in sorted(sights, key=lambda each: each.exchange.ask.number))

    def _one(self, sight: Sight) -> Evidence:
        exchange = sight.exchange
        text = exchange.headers if sight.in_headers else answer_of(exchange)
        digest, kept = self.redacted(text)
        return Evidence(
            request=exchange.ask.number,
            tenant=exchange.ask.tenant,
            of=sight.of,
            phase=str(exchange.ask.phase),
            seen=f"{sight.seen}, in headers" if sight.in_headers else sight.seen,
            length=len(text),
            digest=digest,
            text=kept,
        )

    def redacted(self, text: str) -> tuple[str, str | None]:
        """Give a text's digest, and the text itself where texts are kept."""
        digest = hmac.new(self._key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
        return digest[:32], text if self._keep else None


def answer_of(exchange: Exchange) -> str:
    """Give all text that came: what was thought and called, what was said, and the words of an error."""
    return "\n".join(part for part in (exchange.aside, exchange.text, exchange.refusal or exchange.message) if part)


def places_of(exchange: Exchange) -> Iterator[tuple[bool, str]]:
    """Give every text in which another's may stand: the answer, and the values of headers (True)."""
    yield False, answer_of(exchange)
    yield True, exchange.headers
