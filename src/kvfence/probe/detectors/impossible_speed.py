"""The first token came sooner than a prompt of this length can be computed.

What it rests on, with no chance in it: more fresh tokens do not take less time. So no rate is needed that a leak could
have spoilt: a prompt is impossibly fast if its first token came ``MARGIN`` times sooner than the *fastest* of fresh
prompts from a quarter of its length up to its own, at least ``LEAST`` of which had the server for themselves; those
found too fast are no measure. One of those must have come later: a server that has grown faster is at no fault. Where
they took unequal times a token, because others use the machine, the margin grows as many times. Answers from a prompt
cache do not count: what an earlier prompt began with, and what usage calls cached, is taken off. Proxies that hold
pieces back make times longer, never shorter. Three such answers are suspect, fewer a note.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

from kvfence.probe.exchange import Exchange, Phase, Record
from kvfence.probe.finding import Finding, Severity, Sight

NAME = "impossible-speed"
PREMISE = "more fresh tokens do not take a third of the time of fewer"
MARGIN = 3.0
LEAST = 3
SUSPECT_MIN = 3
NOTICEABLE_S = 0.03
"""Below this a difference of times is the network's."""


def look(record: Record) -> list[Finding]:
    """Compare every fresh prompt with the fastest of the shorter ones."""
    timed = sorted(_timed(record), key=lambda each: (each[0], each[1].ask.number))
    lengths = [length for length, _ in timed]
    alone = _alone(record.exchanges)
    fast: dict[int, Sight] = {}
    for length, exchange in timed:
        near = timed[bisect_left(lengths, length / 4) : bisect_left(lengths, length)]
        shorter = [(tokens, each) for tokens, each in near if each.ask.number not in fast]
        least_s = min((_ttft(each) for _, each in shorter), default=0.0)
        if least_s < NOTICEABLE_S:
            continue
        rates = [_ttft(each) / tokens for tokens, each in shorter if each.ask.number in alone]
        later = any(each.sent_s > exchange.sent_s for _, each in shorter)
        if later and len(rates) >= LEAST and MARGIN * _ttft(exchange) * max(rates) / min(rates) < least_s:
            seen = f"{_ttft(exchange):.3f} s, where a shorter prompt took {least_s:.3f} s"
            fast[exchange.ask.number] = Sight(exchange=exchange, seen=seen)
    if not fast:
        return []
    message = f"{len(fast)} first tokens came sooner than a third of the fastest of shorter prompts"
    severity = Severity.SUSPECT if len(fast) >= SUSPECT_MIN else Severity.NOTE
    return [Finding(detector=NAME, severity=severity, message=message, premise=PREMISE, sights=tuple(fast.values()))]


def _ttft(exchange: Exchange) -> float:
    return exchange.ttft_s or 0.0


def _timed(record: Record) -> list[tuple[float, Exchange]]:
    """Give each answer with a time of its first token, by the tokens that had to be computed for it."""
    earlier: list[str] = []
    found = []
    for each in sorted(record.exchanges, key=lambda each: each.sent_s):
        share = fresh_share(each.ask.prompt, earlier)
        insort(earlier, each.ask.prompt)
        if each.ask.phase is Phase.PREFIX or each.status != 200 or each.ttft_s is None or not each.ask.num_tokens:
            continue
        fresh = each.ask.num_tokens * share - (each.cached_tokens or 0)
        if share > 0.5 and fresh > 1:
            found.append((fresh, each))
    return found


def fresh_share(prompt: str, earlier: Sequence[str]) -> float:
    """Give which part of a prompt no earlier one began with; earlier is sorted, so that the nearest stand beside it."""
    at = bisect_left(earlier, prompt)
    alike = max((_num_alike(prompt, each) for each in earlier[max(at - 1, 0) : at + 1]), default=0)
    return 1 - alike / max(len(prompt), 1)


def _num_alike(one: str, other: str) -> int:
    """Give how many characters two texts begin with alike: halving, so that long ones are compared as a whole."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _alone(exchanges: Sequence[Exchange]) -> set[int]:
    """Name the requests that had nothing beside them until their first token."""
    found: set[int] = set()
    ordered = sorted(exchanges, key=lambda each: each.sent_s)
    busy_until = float("-inf")
    for index, each in enumerate(ordered):
        following = ordered[index + 1].sent_s if index + 1 < len(ordered) else float("inf")
        if busy_until <= each.sent_s and (each.first_s or each.ended_s) <= following:
            found.add(each.ask.number)
        busy_until = max(busy_until, each.ended_s)
    return found
