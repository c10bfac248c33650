"""Usage contradicts the prompt: one token counted where a thousand were sent is the incident's fingerprint.

What it rests on, with no chance in it: a server that answers a prompt counts it. A count below half of what was sent,
cached tokens included, is suspect where the server has counted at least twice as much of another prompt in full: then
it can. A count cut down to about the most that was ever counted is a prompt cut short, as some servers do without a
word: a note, because the answer is then not to what was asked. A prompt counts once, with its first answer,
and one that begins as another's not at all: some servers count what they had to compute.
"""

from kvfence.probe.exchange import Exchange, Phase, Record, first_of_each_prompt
from kvfence.probe.finding import Finding, Severity, Sight

NAME = "prompt-tokens"
PREMISE = "a server that answers a prompt counts it"
SHORT = 0.5
SLACK_TOKENS = 16
CUT = 0.9


def look(record: Record) -> list[Finding]:
    """Compare what was counted with what was sent."""
    fresh = first_of_each_prompt(each for each in record.exchanges if each.ask.phase is not Phase.PREFIX)
    counted = [each for each in fresh if each.is_answer and each.prompt_tokens and each.ask.num_tokens]
    whole = max((_counted(each) for each in counted if _counted(each) >= CUT * _sent(each)), default=0)
    short = [each for each in counted if _counted(each) + SLACK_TOKENS < SHORT * _sent(each)]
    odd = [each for each in short if 2 * _counted(each) <= whole]
    cut = [each for each in counted if each not in odd and _counted(each) + SLACK_TOKENS < CUT * _sent(each)]
    return [
        *_finding(odd, Severity.SUSPECT, "{} answers count less than half of their prompt"),
        *_finding(cut, Severity.NOTE, "{} prompts were cut short without a word"),
    ]


def _counted(exchange: Exchange) -> int:
    return (exchange.prompt_tokens or 0) + (exchange.cached_tokens or 0)


def _sent(exchange: Exchange) -> int:
    """Give what was sent: as it was planned, and no more than one token a word, in case it was planned wrong."""
    return min(exchange.ask.num_tokens or 0, len(exchange.ask.prompt.split()))


def _finding(exchanges: list[Exchange], severity: Severity, message: str) -> list[Finding]:
    sights = tuple(Sight(exchange=each, seen=f"{_counted(each):,} counted of {_sent(each):,}") for each in exchanges)
    found = Finding(
        detector=NAME, severity=severity, message=message.format(len(sights)), premise=PREMISE, sights=sights
    )
    return [found] if sights else []
