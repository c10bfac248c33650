"""An answer that was asked to repeat its own marker and shows no trace of it, where this model can repeat one.

What it rests on: such an answer was not computed from its prompt. A weak model loses a marker, too, and a long prompt
costs it more than a short one; so answers are compared with this same model's answers to prompts of the like length,
and the null grants that the odds of an echo may fall to a quarter of those.

The bound: two families of tests, exact and conditional on their sums (Fisher's noncentral law): at each length of an
asked prompt, prompts up to twice as long against those down to half as long, and answers under load or after others
went away against the rest. All of them together are corrected by their number (Bonferroni).
A prompt counts once, with its first answer.
No test is made where fewer than half of the positive controls are echoed.
"""

from collections.abc import Sequence

from kvfence.probe.chance import fewer, share
from kvfence.probe.exchange import Exchange, Phase, Record, first_of_each_prompt
from kvfence.probe.finding import Finding, Severity, Sight, answer_of
from kvfence.probe.lexicon import Lexicon, lexicon_of

NAME = "amnesia"
LIMITS = share()
ODDS = 0.25
ROOM_TOKENS = 6
"""Answers that may have fewer tokens are not held to an echo."""

DISTURBED = frozenset({Phase.ABORT, Phase.PRESSURE})

Heard = tuple[Exchange, bool]


def look(record: Record) -> list[Finding]:
    """Compare echoes with those of prompts of the like length, and of quiet times."""
    lexicon = lexicon_of(record.words)
    asked = first_of_each_prompt([each for each in record.exchanges if each.ask.echo and each.is_answer and _ran(each)])
    heard = [(each, echoes(each, lexicon)) for each in asked]
    controls = [echoed for each, echoed in heard if each.ask.phase is Phase.CALIBRATE and each.ask.role == "control"]
    if not controls or 2 * sum(controls) < len(controls):
        return []
    tests = [*_by_length(heard), *_by_phase(heard)]
    if not tests:
        return []
    p, lost, message = min(tests, key=lambda test: test[0])
    p = min(1.0, p * len(tests))
    if p > LIMITS.suspect:
        return []
    sights = tuple(Sight(exchange=each, seen="no trace of its own prompt") for each in lost)
    return [
        Finding(detector=NAME, severity=Severity.SUSPECT, message=message, p=p, limit=LIMITS.suspect, sights=sights)
    ]


def echoes(exchange: Exchange, lexicon: Lexicon) -> bool:
    """Does the answer hold half of a marker that it was asked to repeat, in any dress?"""
    said = {word for row in lexicon.rows(answer_of(exchange)).values() for word in row if word is not None}
    return any(
        2 * sum(part in said for part in parts) >= len(parts)
        for parts in map(lexicon.parts, exchange.ask.echo)
        if parts
    )


def _ran(exchange: Exchange) -> bool:
    """Is there an answer, and had it room for an echo?"""
    return exchange.ask.max_tokens >= ROOM_TOKENS and bool(answer_of(exchange))


def _by_length(heard: Sequence[Heard]) -> list[tuple[float, list[Exchange], str]]:
    """At each length: are echoes lost from there on?"""
    quiet = [(each.ask.num_tokens, echoed, each) for each, echoed in heard if each.ask.num_tokens]
    tests = []
    for cut in sorted({length for length, _, _ in quiet})[1:]:
        below = [echoed for length, echoed, _ in quiet if cut / 2 <= length < cut]
        above = [(echoed, each) for length, echoed, each in quiet if cut <= length <= 2 * cut]
        lost = [each for echoed, each in above if not echoed]
        p = fewer(len(above) - len(lost), len(above), sum(below), len(below), ODDS)
        message = f"from {cut:,} tokens on {len(lost)} of {len(above)} answers show no trace of their own prompt; "
        tests.append((p, lost, message + f"of shorter ones {len(below) - sum(below)} of {len(below)}"))
    return tests


def _by_phase(heard: Sequence[Heard]) -> list[tuple[float, list[Exchange], str]]:
    """Under load, and after others went away: are echoes lost that are not lost in quiet?"""
    tests = []
    for phase in sorted(DISTURBED):
        those = [(each, echoed) for each, echoed in heard if each.ask.phase is phase]
        lengths = [each.ask.num_tokens for each, _ in those if each.ask.num_tokens]
        low, high = (min(lengths) / 2, 2 * max(lengths)) if lengths else (0.0, float("inf"))
        quiet = [
            echoed
            for each, echoed in heard
            if each.ask.phase not in DISTURBED and low <= (each.ask.num_tokens or 0) <= high
        ]
        lost = [each for each, echoed in those if not echoed]
        p = fewer(len(those) - len(lost), len(those), sum(quiet), len(quiet), ODDS)
        message = f"in phase {phase} {len(lost)} of {len(those)} answers show no trace of their own prompt; "
        tests.append((p, lost, message + f"elsewhere {len(quiet) - sum(quiet)} of {len(quiet)}"))
    return tests
