"""One greedy prompt, asked alone again and again, is copied now right and now garbled.

What it rests on, with no chance in it: a model may slip when it copies, and then it slips again, because nothing that
it computes with has changed. So this model's own answers to this very prompt are the null: where some slip and some do
not, each in another way, the bytes that were read were not the same. A slip is a word that resembles one of its own
marker's without being one (four letters of five stand); where other answers hold nothing but words of the prompt, any
word that is neither the prompt's nor of anybody's markers. Prompts that differ in the number they begin with count as
one. The first answer to one that is asked again to the letter accuses nobody: later ones may come from a cache of it,
and be computed otherwise. Nor do two that are alike: a server may have two ways to compute a prompt. Only on a server
that calibration saw to be deterministic, only prompts with nothing else in flight, and never the last word, which the
answer's end may have cut. Three such answers are suspect if they are a fifth of those that could be such or more: a
small model slips now and then. Else they are a note.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

from kvfence.probe.exchange import Exchange, Phase, Record
from kvfence.probe.finding import Finding, Severity, Sight
from kvfence.probe.lexicon import Form, Lexicon, lexicon_of, words_of

NAME = "garbled-echo"
PREMISE = "a greedy copy that came out right comes out right again"
ALONE = frozenset({"alone", "before", "after-b", "after-c"})
SUSPECT_MIN, SUSPECT_SHARE = 3, 0.2


def look(record: Record) -> list[Finding]:
    """Find prompts of which some answers slip and some do not."""
    lexicon = lexicon_of(record.words)
    prompts: dict[int | str, list[Exchange]] = defaultdict(list)
    for each in record.exchanges:
        if each.ask.phase is Phase.REPLAY and each.ask.role in ALONE and each.ask.echo and each.is_answer:
            prompts[each.ask.text_id].append(each)
    found = [each for asked in prompts.values() for each in _odd(asked, lexicon)]
    odd = [Sight(exchange=each, seen="its own text is garbled") for each in found]
    if not odd:
        return []
    num_asked = sum(len(asked) for asked in prompts.values() if len(asked) > 1)
    sure = len(odd) >= max(SUSPECT_MIN, SUSPECT_SHARE * num_asked) and record.calibration.deterministic is True
    message = f"{len(odd)} answers garble what other answers to the same prompt copy"
    severity = Severity.SUSPECT if sure else Severity.NOTE
    return [Finding(detector=NAME, severity=severity, message=message, premise=PREMISE, sights=tuple(odd))]


def _odd(asked: Sequence[Exchange], lexicon: Lexicon) -> list[Exchange]:
    """Give the answers to one prompt that slip, each as no other does; none where all of them slip."""
    strange = [each for each in asked if _is_strange(each, lexicon)]
    slips = strange if len(strange) < len(asked) else [each for each in asked if _resembles(each, lexicon)]
    times = Counter(each.text for each in asked)
    if len(slips) == len(asked):
        return []
    first, later = asked[0], asked[1:]
    excused = [first] if any(each.ask.prompt == first.ask.prompt for each in later) else []
    return [each for each in slips if each not in excused and times[each.text] == 1]


def _is_strange(exchange: Exchange, lexicon: Lexicon) -> bool:
    """Does it hold a word, the last one aside, that its prompt does not, and that is no word of anybody's markers?"""
    known = lexicon.known.union(words_of(exchange.ask.prompt))
    return any(word not in known for word in words_of(exchange.text)[:-1])


def _resembles(exchange: Exchange, lexicon: Lexicon) -> bool:
    """Does a word, the last one aside, resemble one of its own marker's without being one?"""
    own = {part for marker in exchange.ask.echo for part in lexicon.parts(marker)}
    rows = lexicon.rows(exchange.text)
    pairs = list(zip(rows[Form.EXACT], rows[Form.GARBLED], strict=True))[:-1]
    return any(exact is None and garbled in own for exact, garbled in pairs)
