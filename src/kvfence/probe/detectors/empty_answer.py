"""200 and nothing in it.

What it rests on: an answer of which usage counts a token may be a model's that ended at once, and one that ended for
its length had tokens (hidden thoughts, say); one without text and without either is no answer. Some servers give a few
of those anyway, so they accuse only where they come in one phase, or from one length on, and not elsewhere.

The bound: Fisher's exact test of each phase, and at each length, against the rest; corrected by their number. A prompt
counts once, with its first answer: asked again it would be answered alike.
"""

from collections.abc import Iterator, Sequence

from kvfence.probe.chance import fewer, share
from kvfence.probe.exchange import Exchange, Record, first_of_each_prompt
from kvfence.probe.finding import Finding, Severity, Sight

NAME = "empty-answer"
LIMITS = share()


def look(record: Record) -> list[Finding]:
    """Ask where answers are empty."""
    answers = [each for each in record.exchanges if each.is_answer and each.ask.max_tokens > 0]
    empty = [each for each in answers if is_empty(each)]
    if not empty:
        return []
    tests = list(_tests(first_of_each_prompt(answers)))
    p, where = min(tests, default=(1.0, ""))
    p = min(1.0, p * len(tests))
    guilty = p <= LIMITS.suspect
    return [
        Finding(
            detector=NAME,
            severity=Severity.SUSPECT if guilty else Severity.NOTE,
            message=f"{len(empty)} of {len(answers)} answers with status 200 are empty{where if guilty else ''}",
            p=p,
            limit=LIMITS.suspect,
            sights=tuple(Sight(exchange=each, seen="no text, no token counted") for each in empty),
        )
    ]


def is_empty(exchange: Exchange) -> bool:
    """Was nothing said, thought or counted?"""
    said = exchange.text or exchange.aside or exchange.completion_tokens or exchange.finish_reason == "length"
    return exchange.is_answer and not said


def _tests(answers: Sequence[Exchange]) -> Iterator[tuple[float, str]]:
    for phase in sorted({each.ask.phase for each in answers}):
        yield _compare(answers, [each.ask.phase is phase for each in answers]), f", most of them in phase {phase}"
    for length in sorted({each.ask.num_tokens for each in answers if each.ask.num_tokens})[1:]:
        long = [(each.ask.num_tokens or 0) >= length for each in answers]
        yield _compare(answers, long), f", most of them from {length:,} tokens on"


def _compare(answers: Sequence[Exchange], these: Sequence[bool]) -> float:
    full = [not is_empty(each) for each in answers]
    inside = [filled for filled, chosen in zip(full, these, strict=True) if chosen]
    outside = [filled for filled, chosen in zip(full, these, strict=True) if not chosen]
    return fewer(sum(inside), len(inside), sum(outside), len(outside))
