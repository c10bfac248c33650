"""One account in a report: was it affected, and the sentence for its letter.

The sentence says what the logs show and no more: an account whose requests cannot be told is not told that it is clear.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from kvfence.core.errors import EvidenceError
from kvfence.evidence.visible import plain
from kvfence.scope.report.document import AccountLine, Document, Tally, Told
from kvfence.scope.report.pseudonyms import Pseudonyms

_WORDS = {
    "AFFECTED": "its response may have contained text of other customers",
    "LIKELY": "its response probably contained text of other customers",
    "POSSIBLE_VICTIM": "memory that had held it may have been read into another customer's response",
    "UNKNOWN": "we cannot tell whether its response was affected",
}
Verdict = Literal["affected", "likely", "possible_victim", "unknown", "not_seen", "not_affected", "excluded"]


class Answer(Struct, frozen=True):
    """What is said of one account. longest: tokens of its longest prompt, None where none was logged.

    told: its requests that are not clear, as their sender can recognise them: for the letter. request_ids: of affected
    answers, as the report writes them. seen: whether the logs hold any request of this account.
    """

    account: str
    verdict: Verdict
    letter: str
    longest: int | None
    seen: bool
    tally: Tally
    request_ids: tuple[str, ...]
    told: tuple[Told, ...] = ()

    def lines(self) -> Iterator[str]:
        """Give a line for the letter about each request: the customer knows when it asked and how much, not our ids."""
        counts = {"AFFECTED": self.tally.affected, "LIKELY": self.tally.likely, "UNKNOWN": self.tally.unknown}
        counts |= {"POSSIBLE_VICTIM": self.tally.possible_victims}
        for klass, words in _WORDS.items():
            own = [each for each in self.told if each.klass == klass]
            for each in own:
                when = f"{each.started[:10]} {each.started[11:19]} UTC" if each.started else "time not logged"
                tokens = (
                    "length not logged" if each.prompt_tokens is None else f"prompt of {each.prompt_tokens:,} tokens"
                )
                yield f"{when}, {tokens}{f', {each.model}' if each.model else ''}: {words}"
            if counts[klass] > len(own):
                yield f"and {counts[klass] - len(own):,} more: {words}"


def answer(document: Document, account: str, key: bytes | None) -> Answer:
    """Find an account by its name or its pseudonym and say what the report knows of it.

    Raises:
        EvidenceError: the report has pseudonyms and the account cannot be found without the key, or the key is another.
    """
    line = _find(document, account, key)
    if line is None and document.accounts_left_out:
        raise EvidenceError(
            f"{plain(account)} is not among the accounts that this report lists, and {document.accounts_left_out:,} "
            "without a finding were left out of it: judge its own log lines"
        )
    found = line or AccountLine(plain(account), Tally())
    verdict = _verdict(document, found, seen=line is not None)
    sentence = _letter(document, found, verdict, line is not None)
    return Answer(
        plain(account), verdict, sentence, found.longest, line is not None, found.tally, found.ids.affected, found.told
    )


def _find(document: Document, account: str, key: bytes | None) -> AccountLine | None:
    if document.names.pseudonyms and key is not None:
        if Pseudonyms(key).names.key != document.names.key:
            raise EvidenceError(f"this is another key than the report's, whose fingerprint is {document.names.key}")
        wanted = {account, Pseudonyms(key).account(account)}
    else:
        wanted = {plain(account)}
    line = next((each for each in document.accounts if each.name in wanted), None)
    if line is None and document.names.pseudonyms and key is None:
        raise EvidenceError("this report has pseudonyms: give --key FILE, or the account's pseudonym")
    return line


def _verdict(document: Document, line: AccountLine, *, seen: bool) -> Verdict:
    """Give the worst that holds; requests of nobody known, and lines not read, may be this account's: it is unknown.

    An account without a request may be a misspelt one: it is not told that it is clear.
    """
    tally = line.tally
    nameless = next((each.tally for each in document.accounts if each.name is None), Tally())
    ladder: Sequence[tuple[int, Verdict]] = (
        (tally.affected, "affected"),
        (tally.likely, "likely"),
        (tally.possible_victims, "possible_victim"),
        (tally.unknown or _in_question(nameless) or _unread(document), "unknown"),
        (tally.excluded, "excluded"),
    )
    return next((verdict for count, verdict in ladder if count), "not_affected" if seen else "not_seen")


def _letter(document: Document, line: AccountLine, verdict: Verdict, seen: bool) -> str:
    tally, when = line.tally, _period(document)
    if verdict == "affected":
        return (
            f"{_count(tally.affected, 'response')} to your requests {when} may have contained text of other customers"
            f"{_dated(line)}; {_their(tally.affected)} prompts were longer than the memory that had to hold them."
            f"{_also(tally)}"
        )
    if verdict == "likely":
        return (
            f"{_count(tally.likely, 'response')} to your requests {when} probably contained text of other customers; "
            f"our logs lack the length of the prompt, which would settle it.{_also(tally)}"
        )
    if verdict == "possible_victim":
        return (
            f"None of the responses you received {when} is known to be wrong, but memory that had held "
            f"{_count(tally.possible_victims, 'of your requests', 'of your requests')} may have been read into another "
            f"customer's response; we cannot show that it was, nor that it was not.{_untold(tally)}"
        )
    if verdict == "unknown":
        return _unknown(document, line, when)
    if verdict == "excluded":
        return f"Your requests {when} were our own tests or part of the report to us, and were counted apart."
    if not seen:
        return f"Our logs hold no request of yours{f' {when}' if when else ''}."
    longest = f", and your longest prompt had {line.longest:,} tokens" if line.longest is not None else ""
    return f"None of your requests {when} was affected{longest}."


def _unknown(document: Document, line: AccountLine, when: str) -> str:
    own = line.tally.unknown
    if own:
        text = f"For {_count(own, 'of your requests', 'of your requests')} {when} we cannot tell whether "
        return f"{text}the response was affected: our logs lack what would decide it. No other request of yours was."
    nameless = next((each.tally for each in document.accounts if each.name is None), Tally())
    said, count, unread = [], _in_question(nameless), _unread(document)
    if count:
        said.append(f"{_count(count, 'request')} in question {'carries' if count == 1 else 'carry'} no account")
    if unread:
        said.append(f"{_count(unread, 'line')} of our logs could not be read")
    return (
        f"No request {when} that our logs show to be yours was affected, but {' and '.join(said)}, so that we cannot "
        "rule out that one was yours."
    )


def _unread(document: Document) -> int:
    """Count the lines that were not read: each may be anybody's request."""
    return sum(each.num_unread for each in document.readings)


def _in_question(nameless: Tally) -> int:
    """Count the requests without an account that may be anybody's."""
    return nameless.affected + nameless.likely + nameless.possible_victims + nameless.unknown


def _period(document: Document) -> str:
    start, end = document.period.start, document.period.end
    return f"from {start[:10]} {start[11:16]} to {end[:10]} {end[11:16]} UTC" if start and end else "in our logs"


def _count(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def _their(count: int) -> str:
    return "its" if count == 1 else "their"


def _dated(line: AccountLine) -> str:
    return f" (your longest prompt had {line.longest:,} tokens)" if line.longest is not None else ""


def _also(tally: Tally) -> str:
    """Add what else is known: a letter that names the worst alone would hide the rest."""
    said = []
    if tally.affected and tally.likely:
        said.append(f"{tally.likely:,} more probably did")
    if tally.possible_victims:
        said.append(f"memory of {tally.possible_victims:,} of your requests may have been read into another response")
    return f" Also: {'; '.join(said)}.{_untold(tally)}" if said else _untold(tally)


def _untold(tally: Tally) -> str:
    both = tally.possible_victims_also_unknown
    also = f" Whether the responses to {both:,} of these were right we cannot tell." if both else ""
    return also + (f" Of {tally.unknown:,} more we cannot tell." if tally.unknown else "")
