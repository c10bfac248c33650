"""One greedy prompt, asked alone again and again, has its marker copied now right and now garbled.

What it rests on, with no chance in it: a model may slip when it copies, and then it slips again, because nothing that
it computes with has changed. Where a few of a prompt's answers garble a word of its own marker (four letters of five
stand) and most do not, the bytes that were read were not the same. Only on a server that calibration saw to be
deterministic, only prompts with nothing else in flight, and never the last word, which the answer's end may have cut.
Three such answers are suspect, fewer a note.
"""

from collections import defaultdict

from kvfence.probe.exchange import Exchange, Phase, Record
from kvfence.probe.finding import Finding, Severity, Sight
from kvfence.probe.lexicon import Form, Lexicon, lexicon_of

NAME = "garbled-echo"
PREMISE = "a greedy copy that came out right comes out right again"
ALONE = frozenset({"alone", "after-b", "after-c"})
ASKED_MIN = 3
SUSPECT_MIN = 3


def look(record: Record) -> list[Finding]:
    """Find prompts of which a few answers slip and most do not."""
    lexicon = lexicon_of(record.words)
    prompts: dict[str, list[Exchange]] = defaultdict(list)
    for each in record.exchanges:
        if each.ask.phase is Phase.REPLAY and each.ask.role in ALONE and each.ask.echo and each.is_answer:
            prompts[each.ask.prompt].append(each)
    odd: list[Sight] = []
    for asked in prompts.values():
        slips = [each for each in asked if _slips(each, lexicon)]
        if len(asked) >= ASKED_MIN and 2 * len(slips) < len(asked):
            odd += [Sight(exchange=each, seen="its own marker is garbled") for each in slips]
    if not odd:
        return []
    sure = len(odd) >= SUSPECT_MIN and record.calibration.deterministic is True
    message = f"{len(odd)} answers garble a marker that other answers to the same prompt repeat"
    severity = Severity.SUSPECT if sure else Severity.NOTE
    return [Finding(detector=NAME, severity=severity, message=message, premise=PREMISE, sights=tuple(odd))]


def _slips(exchange: Exchange, lexicon: Lexicon) -> bool:
    """Does a word, the last one aside, resemble one of its own marker's without being one?"""
    own = {part for marker in exchange.ask.echo for part in lexicon.parts(marker)}
    rows = lexicon.rows(exchange.text)
    pairs = list(zip(rows[Form.EXACT], rows[Form.GARBLED], strict=True))[:-1]
    return any(exact is None and garbled in own for exact, garbled in pairs)
