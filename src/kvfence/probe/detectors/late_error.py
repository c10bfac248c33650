"""An error after 200: the stream had begun and broke, or the body is an error.

What it rests on, with no chance in it: whoever says 200 gives an answer. Where nothing of the answer had come yet it
may be a refusal that came too late for its status: a note. A text that breaks off is suspect from three on, unless the
server died.
"""

from kvfence.probe.exchange import Cut, Exchange, Record, Trouble
from kvfence.probe.finding import Finding, Severity, Sight

NAME = "late-error"
PREMISE = "whoever has begun to answer ends the answer"
SUSPECT_MIN = 3


def look(record: Record) -> list[Finding]:
    """Find answers that broke."""
    broken = [each for each in record.exchanges if each.status == 200 and each.trouble is Trouble.BROKEN]
    begun = [each for each in broken if each.text or each.aside]
    late = [each for each in broken if each not in begun]
    died = record.cut in (Cut.GONE, Cut.STOPPED)
    severity = Severity.SUSPECT if len(begun) >= SUSPECT_MIN and not died else Severity.NOTE
    return [
        *_finding(begun, severity, "{} answers broke off after status 200"),
        *_finding(late, Severity.NOTE, "{} requests got status 200 and an error in place of an answer"),
    ]


def _finding(exchanges: list[Exchange], severity: Severity, message: str) -> list[Finding]:
    sights = tuple(Sight(exchange=each, seen=f"after {each.num_pieces} pieces") for each in exchanges)
    found = Finding(
        detector=NAME, severity=severity, message=message.format(len(sights)), premise=PREMISE, sights=sights
    )
    return [found] if sights else []
