"""A prompt is answered with 200 although a shorter one is refused for its length.

What it rests on, with no chance in it: a limit is a limit. Prompt and prompt with answer must both be longer than those
of a refused request (400, 413 or 422, no 429 and no 503, and where it says why, the words are of length: filters of
content refuse, too), and the server must not have counted it down to what fits.
Nobody counts a refused prompt, so its length is the ruler's, and may be a little wrong: a refusal below what
calibration saw answered is taken to be at that length.
"""

import re

from kvfence.probe.exchange import Exchange, Record, Trouble
from kvfence.probe.finding import Finding, Severity, Sight

NAME = "over-limit"
PREMISE = "what is longer than a refused prompt is refused"
REFUSALS = frozenset({400, 413, 422})
SLACK = 1.05
_OF_LENGTH = re.compile(r"token|context (size|window)|length|long|large|limit|exceed|maximum|pages", re.IGNORECASE)
_NO_WORDS = re.compile(r"status \d+|\(words .*|")


def look(record: Record) -> list[Finding]:
    """Find answers beyond the shortest refusal."""
    refused = [each for each in record.exchanges if _is_refusal(each) and each.ask.num_tokens]
    if not refused:
        return []
    lowest = min(refused, key=lambda each: each.ask.num_tokens or 0)
    known = record.calibration.limit_tokens or record.calibration.limit_low or 0
    limit = max(lowest.ask.num_tokens or 0, known)
    over = [each for each in record.exchanges if each.is_answer and _is_over(each, limit, lowest.ask.max_tokens)]
    if not over:
        return []
    sights = tuple(Sight(exchange=each, seen=f"200 to {each.ask.num_tokens:,} tokens") for each in over)
    message = f"{len(over)} prompts were answered though one of {limit:,} tokens was refused"
    return [Finding(detector=NAME, severity=Severity.SUSPECT, message=message, premise=PREMISE, sights=sights)]


def _is_refusal(exchange: Exchange) -> bool:
    if exchange.trouble is not Trouble.REFUSED or exchange.status not in REFUSALS:
        return False
    said = exchange.message
    return exchange.status == 413 or bool(_OF_LENGTH.search(said) or _NO_WORDS.fullmatch(said))


def _is_over(exchange: Exchange, limit: int, max_tokens: int) -> bool:
    sent = exchange.ask.num_tokens or 0
    counted = sent if exchange.prompt_tokens is None else exchange.prompt_tokens
    longer = min(sent, counted) > SLACK * limit + 1
    return longer and sent + exchange.ask.max_tokens > SLACK * (limit + max_tokens)
