"""Answers collapse into repetition under load, though not alone.

What it rests on: small models repeat themselves, and some prompts make every model do it. So an answer counts only
against the same prompt's answers with nothing beside it: a prompt whose answers collapse in most cases under load and
seldom alone speaks for a fault, one with the reverse against it.

The bound: the sign test over prompts, P(Binomial(prompts that differ, 1/2) >= those that got worse). Never more than
suspect: another batch is another rounding, and a small model's text may hang on that.
"""

from collections import defaultdict
from collections.abc import Sequence

from kvfence.probe.chance import at_least, share
from kvfence.probe.exchange import Exchange, Phase, Record
from kvfence.probe.finding import Finding, Severity, Sight
from kvfence.probe.lexicon import words_of

NAME = "repetition"
LIMITS = share()
WORDS_MIN = 24
DISTINCT_MAX = 0.2
WIDTH = 3


def look(record: Record) -> list[Finding]:
    """Compare each prompt's answers under load with those it got alone."""
    prompts: dict[str, dict[str, list[Exchange]]] = defaultdict(lambda: defaultdict(list))
    for each in record.exchanges:
        if each.ask.phase is Phase.REPLAY and each.ask.role in ("alone", "loaded") and each.is_answer:
            prompts[each.ask.prompt][each.ask.role].append(each)
    pairs = [(found["alone"], found["loaded"]) for found in prompts.values() if found["alone"] and found["loaded"]]
    worse = [loaded for alone, loaded in pairs if _mostly(loaded) and not _mostly(alone)]
    better = sum(_mostly(alone) and not _mostly(loaded) for alone, loaded in pairs)
    p = at_least(len(worse), len(worse) + better, 0.5)
    if p > LIMITS.suspect:
        return []
    sights = tuple(
        Sight(exchange=each, seen="repeats itself") for loaded in worse for each in loaded if is_collapsed(each.text)
    )
    message = f"the answers to {len(worse)} prompts collapse into repetition under load and not alone"
    return [
        Finding(detector=NAME, severity=Severity.SUSPECT, message=message, p=p, limit=LIMITS.suspect, sights=sights)
    ]


def is_collapsed(text: str) -> bool:
    """Is the text long and made of few different passages?"""
    words = words_of(text)
    passages = list(zip(*(words[start:] for start in range(WIDTH)), strict=False))
    return len(words) >= WORDS_MIN and len(set(passages)) <= DISTINCT_MAX * len(passages)


def _mostly(exchanges: Sequence[Exchange]) -> bool:
    return 2 * sum(is_collapsed(each.text) for each in exchanges) > len(exchanges)
