"""A prompt is answered with 200 although a shorter one is refused for its length.

What it rests on, with no chance in it: a limit is a limit. Prompt and prompt with answer must both be longer than those
of a refused request (400, 413 or 422, no 429 and no 503), and the server must not have counted it down to what fits.
Nobody counts a refused prompt, so its length is the ruler's, and may be a little wrong: a refusal below what
calibration saw answered is taken to be at that length.
"""

from kvfence.probe.exchange import Exchange, Record, Trouble
from kvfence.probe.finding import Finding, Severity, Sight

NAME = "over-limit"
PREMISE = "what is longer than a refused prompt is refused"
REFUSALS = frozenset({400, 413, 422})
SLACK = 1.05


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
    return exchange.trouble is Trouble.REFUSED and exchange.status in REFUSALS


def _is_over(exchange: Exchange, limit: int, max_tokens: int) -> bool:
    sent = exchange.ask.num_tokens or 0
    counted = sent if exchange.prompt_tokens is None else exchange.prompt_tokens
    longer = min(sent, counted) > SLACK * limit + 1
    return longer and sent + exchange.ask.max_tokens > SLACK * (limit + max_tokens)
