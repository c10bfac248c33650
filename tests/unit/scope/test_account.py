"""What a customer is told follows from the report, and never says more than it shows."""

import pytest
from msgspec import structs

from kvfence.core.errors import EvidenceError, SettingsError
from kvfence.scope.account import answer
from kvfence.scope.relation import Duplicates, Reading, Trouble
from kvfence.scope.report.document import AccountLine, Behaviour, Document, Ids, Period, Tally, Told
from kvfence.scope.report.pseudonyms import Pseudonyms, read_key, read_or_make_key

KEY = b"0123456789abcdef"


def document(*lines: AccountLine, key: bytes | None = None, left_out: int = 0) -> Document:
    """Make a document in which only accounts matter."""
    names = Pseudonyms(key)
    shown = tuple(structs.replace(line, name=names.account(line.name)) for line in lines)
    names_of_counts = ("affected", "likely", "possible_victims", "excluded", "unknown", "clear", "requests")
    counts = dict.fromkeys((*names_of_counts, "possible_victims_also_unknown"), 0)
    empty = dict.fromkeys(("reasons", "models", "days", "replicas", "lengths", "history", "readings", "troubles"), ())
    return Document(
        schema="kvfence-scope/1",
        kvfence="0",
        as_of=None,
        period=Period("2026-08-27T00:00:00Z", "2026-09-10T00:00:00Z", True),
        pool=None,
        context=None,
        long_tokens=1,
        names=names.names,
        accounts=shown,
        accounts_left_out=left_out,
        behaviour=Behaviour("unknown", (), (), (), 0, 0),
        history_given=True,
        duplicates=Duplicates(),
        assumptions=(),
        **counts,
        **empty,
    )


AFFECTED = AccountLine("acme", Tally(9, 3, affected=2, unknown=1), 900_000, ids=Ids(affected=("r1", "r2")))
CLEAR = AccountLine("calm", Tally(5), 12_000)


@pytest.mark.parametrize(
    ("line", "verdict", "said"),
    [
        (AFFECTED, "affected", "2 responses to your requests from 2026-08-27"),
        (AFFECTED, "affected", "900,000 tokens"),
        (AFFECTED, "affected", "Of 1 more we cannot tell"),
        (AccountLine("acme", Tally(1, likely=1)), "likely", "1 response to your requests"),
        (AccountLine("acme", Tally(4, possible_victims=3)), "possible_victim", "we cannot show that it was, nor that"),
        (AccountLine("acme", Tally(4, unknown=2)), "unknown", "For 2 of your requests"),
        (AccountLine("acme", Tally(4, excluded=4)), "excluded", "our own tests"),
        (AccountLine("acme", Tally(4), 12_000), "not_affected", "None of your requests"),
        (AccountLine("acme", Tally(4), 12_000), "not_affected", "your longest prompt had 12,000 tokens"),
    ],
)
def test_a_letter_says_what_is_known(line: AccountLine, verdict: str, said: str) -> None:
    """Each verdict has its sentence, with the numbers of the account."""
    found = answer(document(line, CLEAR), "acme", None)
    assert found.verdict == verdict
    assert said in found.letter


def test_unknown_is_never_told_as_unaffected() -> None:
    """An account with requests that cannot be told, or with such requests of nobody known, is not told it is clear."""
    own = answer(document(AccountLine("acme", Tally(4, unknown=2))), "acme", None)
    nameless = answer(document(CLEAR, AccountLine(None, Tally(9, affected=1))), "calm", None)
    for found in (own, nameless):
        assert found.verdict == "unknown"
        assert "cannot" in found.letter
    assert "carries no account" in nameless.letter


def test_lines_that_were_not_read_clear_nobody() -> None:
    """A line that nobody could read may have been this account's."""
    unread = Reading("a.log", "JSON lines", troubles=(Trouble("not_json", 2), Trouble("no_zone", 7)))
    found = answer(structs.replace(document(CLEAR), readings=(unread,)), "calm", None)
    assert found.verdict == "unknown"
    assert "2 lines of our logs could not be read" in found.letter


def test_an_account_that_was_never_seen_is_told_so() -> None:
    """No request in the logs is not the same as none affected; where accounts were left out nothing is said."""
    found = answer(document(AFFECTED), "stranger", None)
    assert (found.seen, found.verdict) == (False, "not_seen")
    assert "Our logs hold no request of yours" in found.letter
    with pytest.raises(EvidenceError, match="left out"):
        answer(document(AFFECTED, left_out=3), "stranger", None)


def test_pseudonyms_need_their_key() -> None:
    """By name with the key, by pseudonym without it; without the key a name is refused, and another key as well."""
    report = document(AFFECTED, CLEAR, key=KEY)
    pseudonym = Pseudonyms(KEY).account("acme")
    assert pseudonym is not None
    assert answer(report, "acme", KEY).verdict == "affected"
    assert answer(report, pseudonym, None).verdict == "affected"
    assert answer(report, "stranger", KEY).seen is False
    with pytest.raises(EvidenceError, match="give --key"):
        answer(report, "acme", None)
    with pytest.raises(EvidenceError, match="another key"):
        answer(report, "acme", KEY + b"!")


def test_a_key_is_made_once_and_kept_private(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Where no key is, one is made that only its owner can read; the second time it is read; a short one is refused."""
    path = tmp_path / "key"
    key, made = read_or_make_key(path)
    assert made
    assert read_or_make_key(path) == (key, False)
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(b"short")
    with pytest.raises(SettingsError, match="5 bytes"):
        read_key(path)


def test_a_letter_names_requests_as_the_customer_knows_them() -> None:
    """By time and length, and how many there are besides; the report's own ids say nothing to a customer."""
    told = (
        Told("AFFECTED", "2026-09-01T10:00:12Z", 900_000, "glm"),
        Told("POSSIBLE_VICTIM", None, None),
    )
    tally = Tally(9, 3, affected=3, possible_victims=1, possible_victims_also_unknown=1)
    line = AccountLine("acme", tally, 900_000, ids=Ids(affected=("request-4711",)), told=told)
    found = answer(document(line), "acme", None)
    lines = list(found.lines())
    assert lines[0].startswith(
        "2026-09-01 10:00:12 UTC, prompt of 900,000 tokens, glm: its response may have contained"
    )
    assert lines[1].startswith("and 2 more: ")
    assert lines[2].startswith("time not logged, length not logged: memory that had held it")
    assert "4711" not in found.letter + "".join(lines)
    assert "Whether the responses to 1 of these were right we cannot tell" in found.letter
