"""A prompt that begins as another tenant's is answered sooner than a fresh one: others can ask what was asked here.

No content comes out, so it is never a leak; it is a side channel, by which one tenant can try guesses at another's
prompt. What it rests on: who has another key has another cache. Where all tenants send one key nothing is said: sharing
within one caller is as meant.

The bound: Mann and Whitney's exact test, times to the first token with another tenant's prefix against those with a
prefix that nobody sent; the difference must also be a tenth of the time at the least.
"""

from statistics import median

from kvfence.probe.chance import share, sooner
from kvfence.probe.exchange import Exchange, Phase, Record
from kvfence.probe.finding import Finding, Severity, Sight

NAME = "shared-prefix"
LIMITS = share()
SOONER_MIN = 0.1


def look(record: Record) -> list[Finding]:
    """Compare times to the first token."""
    if len(set(record.target.keys.values())) < 2:
        return []
    foreign, control = (_timed(record, role) for role in ("foreign", "control"))
    if not foreign or not control:
        return []
    with_prefix, without = ([each.ttft_s or 0.0 for each in group] for group in (foreign, control))
    p = sooner(with_prefix, without)
    if p > LIMITS.suspect or median(with_prefix) > (1 - SOONER_MIN) * median(without):
        return []
    message = (
        f"the prefix of another tenant is faster: {median(with_prefix):.3f} s to the first token "
        f"against {median(without):.3f} s (medians of {len(foreign)} and {len(control)})"
    )
    sights = tuple(Sight(exchange=each, seen=f"{each.ttft_s:.3f} s") for each in foreign)
    return [
        Finding(detector=NAME, severity=Severity.SUSPECT, message=message, p=p, limit=LIMITS.suspect, sights=sights)
    ]


def _timed(record: Record, role: str) -> list[Exchange]:
    return [
        each
        for each in record.exchanges
        if each.ask.phase is Phase.PREFIX and each.ask.role == role and each.is_answer and each.ttft_s is not None
    ]
