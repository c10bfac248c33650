"""Passages of another tenant's text stand in answers: three words in a row, a marker's word among them.

What it rests on: tenants' texts are the same sentences with words in them that were drawn by lot. So the null needs no
other model and no other text: draw a tenant's words anew, from those that nobody else was given, and count again how
many passages of *that* text stand in what this same model answered to others. The text that was sent is one more such
draw; on a sound server it has no reason to be met more often than the rest.

The bound: with ``DRAWS`` fresh draws a tenant's true text scores above all of them with a chance of at most
1/(DRAWS + 1), whatever the model says; over all tenants p = P(Binomial(tenants, 1/(DRAWS + 1)) >= tenants that do).
A passage of the asker's own prompt does not count, nor one with a word of the asker's own markers.
"""

import random
import sys
from collections.abc import Iterator, Mapping, Sequence

from kvfence.probe.chance import at_least, share
from kvfence.probe.exchange import Exchange, Record
from kvfence.probe.finding import Finding, Severity, Sight, places_of
from kvfence.probe.lexicon import Lexicon, lexicon_of, words_of

NAME = "foreign-passage"
LIMITS = share(may_leak=True)
DRAWS = 4_999
WIDTH = 3

Passage = tuple[str, ...]
Pool = tuple[frozenset[str], list[str]]
Heard = tuple[Exchange, bool]
"""An answer, and whether it is its headers that are meant."""

Answers = dict[Passage, list[Heard]]


def look(record: Record) -> list[Finding]:
    """Count, for every tenant, passages of its text in answers to others, against fresh draws of its words."""
    lexicon = lexicon_of(record.words)
    drawn = {tenant: _words(lexicon, markers) for tenant, markers in record.planted.items()}
    texts = {
        tenant: {passage for each in set(prompts) for passage in _passages(each, lexicon)}
        for tenant, prompts in record.texts.items()
        if drawn.get(tenant)
    }
    shapes = {_shape(passage, lexicon.known) for text in texts.values() for passage in text}
    answered = [
        ((each, in_headers), _shaped(_passages(text, lexicon), shapes, lexicon))
        for each in record.exchanges
        for in_headers, text in places_of(each)
    ]
    met: dict[str, Answers] = {}
    lot = random.Random(f"passages/{record.seed}")
    for tenant, text in texts.items():
        began_s = min((each.sent_s for each in record.exchanges if each.ask.tenant == tenant), default=float("inf"))
        others = [
            ((exchange, in_headers), found)
            for (exchange, in_headers), found in answered
            if found and exchange.ask.tenant != tenant and exchange.ended_s > began_s
        ]
        heard = _heard(others, lexicon, drawn)
        if heard and _is_highest(text, heard, drawn[tenant], _pools(lexicon, drawn, tenant), lot):
            met[tenant] = {passage: heard[passage] for passage in text & heard.keys()}
    p = at_least(len(met), len(texts), 1 / (DRAWS + 1))
    return _findings(met, p) if p <= LIMITS.suspect else []


def _words(lexicon: Lexicon, markers: Sequence[str]) -> frozenset[str]:
    return frozenset(part for marker in markers for part in lexicon.parts(marker))


def _passages(text: str, lexicon: Lexicon) -> set[Passage]:
    """Give every distinct row of three words that has a word of the lists."""
    words = words_of(text)
    known = lexicon.known
    rows = zip(*(words[start:] for start in range(WIDTH)), strict=False)
    return {row for row in rows if not known.isdisjoint(row)}


def _shaped(passages: set[Passage], shapes: set[Passage], lexicon: Lexicon) -> set[Passage]:
    """Keep what can stand in a tenant's text, whatever its words are; equal words are kept once."""
    return {tuple(map(sys.intern, each)) for each in passages if _shape(each, lexicon.known) in shapes}


def _heard(
    answered: Sequence[tuple[Heard, set[Passage]]], lexicon: Lexicon, drawn: Mapping[str, frozenset[str]]
) -> Answers:
    """Give what answers hold beyond what their askers know, with the answers."""
    heard: Answers = {}
    for place, found in answered:
        ask = place[0].ask
        own = drawn.get(ask.tenant, frozenset())
        foreign = [passage for passage in found if own.isdisjoint(passage)]
        asked = _passages(ask.prompt, lexicon) if foreign else set()
        for passage in foreign:
            if passage not in asked:
                heard.setdefault(passage, []).append(place)
    return heard


def _pools(lexicon: Lexicon, drawn: Mapping[str, frozenset[str]], tenant: str) -> list[Pool]:
    """Give each list with what this tenant could have been given of it: all that nobody else was."""
    others = frozenset[str]().union(*(words for name, words in drawn.items() if name != tenant))
    return [(each, sorted(each - others)) for each in dict.fromkeys(lexicon.lists)]


def _is_highest(
    text: set[Passage], heard: Answers, words: frozenset[str], pools: Sequence[Pool], lot: random.Random
) -> bool:
    """Is the text that was sent met more often than every fresh draw of it?"""
    known = frozenset[str]().union(*(each for each, _ in pools))
    shapes = {_shape(passage, known) for passage in heard}
    near = [passage for passage in text if _shape(passage, known) in shapes]
    score = sum(passage in heard for passage in near)
    return score > 0 and all(_score(near, heard, draw) < score for draw in _draws(words, pools, lot))


def _shape(passage: Passage, words: frozenset[str]) -> Passage:
    return tuple("" if word in words else word for word in passage)


def _draws(words: frozenset[str], pools: Sequence[Pool], lot: random.Random) -> Iterator[dict[str, str]]:
    owned = [(sorted(each & words), pool) for each, pool in pools]
    for _ in range(DRAWS):
        yield {word: new for own, pool in owned for word, new in zip(own, lot.sample(pool, len(own)), strict=True)}


def _score(text: Sequence[Passage], heard: Answers, draw: Mapping[str, str]) -> int:
    return sum(tuple(draw.get(word, word) for word in passage) in heard for passage in text)


def _findings(met: Mapping[str, Answers], p: float) -> list[Finding]:
    sights = {
        (exchange.ask.number, in_headers, tenant): Sight(
            exchange=exchange, of=tenant, seen="passages of the seeded text", in_headers=in_headers
        )
        for tenant, answers in met.items()
        for places in answers.values()
        for exchange, in_headers in places
    }
    leak = p <= LIMITS.leak
    num_answers = len({number for number, *_ in sights})
    return [
        Finding(
            detector=NAME,
            severity=Severity.LEAK if leak else Severity.SUSPECT,
            message=f"{num_answers} answers hold passages of what {len(met)} other tenants sent",
            p=p,
            limit=LIMITS.leak if leak else LIMITS.suspect,
            sights=tuple(sights.values()),
        )
    ]
