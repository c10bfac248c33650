"""What a person sees on the screen: the count, the models, the accounts, the conduct. No hidden character gets through.

Every text of a document is visible already (``make.py``); ``cell`` keeps formulas out of what is copied.
"""

from collections.abc import Iterator

from kvfence.evidence.visible import cell
from kvfence.scope.report.document import Document, Tally

ACCOUNTS_SHOWN = 12
MODEL_COLUMNS = ("model", "verdict", "why", "requests", "longest", "affected")
TALLY_COLUMNS = ("affected", "likely", "possible victims", "excluded", "unknown", "long prompts")
ACCOUNT_COLUMNS = ("account", *TALLY_COLUMNS, "longest")
DAY_COLUMNS = ("day", *TALLY_COLUMNS)
REASON_COLUMNS = ("class", "requests", "reason")


def headline(document: Document) -> str:
    """Give the answer in one line."""
    accounts = sum(1 for line in document.accounts if line.tally.affected)
    said = f"{document.affected:,} AFFECTED ({accounts:,} accounts), {document.likely:,} LIKELY"
    both = document.possible_victims_also_unknown
    also = f" ({both:,} of them also UNKNOWN)" if both else ""
    victims = f"{document.possible_victims:,} POSSIBLE VICTIMS{also}"
    rest = f"{victims}, {document.excluded:,} EXCLUDED, {document.unknown:,} UNKNOWN"
    return f"{said}, {rest}, {document.clear:,} CLEAR"


def model_rows(document: Document) -> Iterator[tuple[object, ...]]:
    """Give a row for each model."""
    for line in document.models:
        why = "\n".join(cell(sentence) for sentence in line.why[:3])
        tally = line.tally
        yield _name(line.name), line.verdict, why, tally.requests, _number(line.longest), tally.affected


def account_rows(document: Document) -> Iterator[tuple[object, ...]]:
    """Give a row for each of the most affected accounts."""
    found = [line for line in document.accounts if line.tally.affected or line.tally.likely or line.tally.unknown]
    for line in found[:ACCOUNTS_SHOWN]:
        yield _name(line.name), *_counts(line.tally), _number(line.longest)


def day_rows(document: Document) -> Iterator[tuple[object, ...]]:
    """Give a row for each day on which something was found."""
    for line in document.days:
        if any(_counts(line.tally)[:-1]):
            yield line.name or "not known", *_counts(line.tally)


def reason_rows(document: Document) -> Iterator[tuple[object, ...]]:
    """Give a row for each reason."""
    return ((each.klass.replace("_", " "), each.requests, each.text) for each in document.reasons)


def below(document: Document) -> Iterator[str]:
    """Give the lines under the tables: conduct, and what is not known."""
    yield from (cell(sentence) for sentence in document.behaviour.words)
    if document.unknown:
        yield f"{document.unknown:,} requests are UNKNOWN, which is not CLEAR: the reasons say what they lack."
    if unread := sum(each.num_unread for each in document.readings):
        yield f"{unread:,} lines or files were not read, or not as they stand: each may hold anybody's request."
    merged = document.duplicates
    if merged.same or merged.retried or merged.reused:
        yield (
            f"{merged.same:,} rows repeated a request and {merged.retried:,} were tries or other logs' halves of one: "
            f"each request was counted once; {merged.reused:,} had an id of the same account again and were counted "
            "by themselves."
        )
    yield from (f"{each.count:,} × {cell(each.text)}" for each in document.troubles)
    yield from (cell(sentence) for sentence in document.assumptions)


def _counts(tally: Tally) -> tuple[int, ...]:
    return tally.affected, tally.likely, tally.possible_victims, tally.excluded, tally.unknown, tally.long


def _name(name: str | None) -> str:
    return "(not logged)" if name is None else cell(name)


def _number(count: int | None) -> object:
    return "–" if count is None else count
