"""A refusal takes longer than an answer would: a decode worker that waits for a prompt which prefill has refused.

What it rests on, with no chance in it: to refuse a prompt, nothing has to be computed. A refusal (any status but 200,
429 and 503, or an error in place of all of a streamed answer) is slow if it took ``SLOW_S`` and ``TIMES`` times as long
as the slowest first token of whatever was under way meanwhile, or of the whole run where nothing was.
"""

from collections.abc import Sequence

from kvfence.probe.exchange import Exchange, Record, Trouble
from kvfence.probe.finding import Finding, Severity, Sight

NAME = "slow-refusal"
PREMISE = "to refuse a prompt, nothing has to be computed"
SLOW_S = 10.0
TIMES = 5.0


def look(record: Record) -> list[Finding]:
    """Compare how long refusals took with how long others waited for a first token."""
    slow = slow_refusals(record.exchanges)
    if not slow:
        return []
    count, longest = len(list(filter(_is_refusal, record.exchanges))), max(map(took_s, slow))
    sights = tuple(Sight(exchange=each, seen=f"status {each.status} after {took_s(each):.0f} s") for each in slow)
    message = f"{len(slow)} of {count} refusals took long, up to {longest:.0f} s"
    return [Finding(detector=NAME, severity=Severity.SUSPECT, message=message, premise=PREMISE, sights=sights)]


def slow_refusals(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Give the refusals among them that took long."""
    refused = filter(_is_refusal, exchanges)
    return [each for each in refused if took_s(each) >= max(SLOW_S, TIMES * _waited_s(exchanges, each))]


def took_s(exchange: Exchange) -> float:
    """Give how long it took in all."""
    return exchange.ended_s - exchange.sent_s


def _is_refusal(exchange: Exchange) -> bool:
    """By its status, or by the server's own error after 200 where nothing of an answer had come."""
    late = exchange.trouble is Trouble.BROKEN and exchange.refusal and not exchange.num_pieces
    return exchange.trouble is Trouble.REFUSED or bool(late)


def _waited_s(exchanges: Sequence[Exchange], refusal: Exchange) -> float:
    answered = [each for each in exchanges if each.status == 200 and each.ttft_s is not None]
    meanwhile = [
        each.ttft_s or 0.0
        for each in answered
        if each.sent_s < refusal.ended_s and (each.first_s or 0.0) > refusal.sent_s
    ]
    return max(meanwhile or [each.ttft_s or 0.0 for each in answered], default=0.0)
