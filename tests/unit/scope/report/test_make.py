"""The document holds every request once, under pseudonyms that only the key undoes, and never changes by itself."""

import json
from datetime import datetime, timedelta

import pytest

from kvfence.core.errors import EvidenceError
from kvfence.scope.report.document import from_json, to_json
from kvfence.scope.report.make import make_document
from tests.unit.scope.report.conftest import POOL, Make, row

KEY = b"an operator's key of some length"
ROWS = (
    row("r1", started=datetime.fromisoformat("2026-08-28T05:00")),
    row("r2", account="beta", prompt_tokens=900_000),
    row("r3", "ttft_below_prefill", account="beta", prompt_tokens=None),
    row("r4", "in_read_window", account="gamma", prompt_tokens=5_000),
    row("r5", "excluded_affected", account="own-tests"),
    row("r6", "no_length", account="delta", prompt_tokens=None),
    row("r7", "fixed_release", account="delta", vulnerable=False),
)


def test_every_class_is_counted_once_everywhere(make_relation: Make) -> None:
    """Totals by day, model, replica and account are those of the classes, and each id stands with its account."""
    document = make_document(make_relation(ROWS), None)
    whole = (document.affected, document.likely, document.possible_victims, document.excluded, document.unknown)
    assert (*whole, document.clear) == (2, 1, 1, 1, 1, 1)
    for lines in (document.days, document.models, document.replicas, document.accounts):
        tallies = [line.tally for line in lines]
        fields = ("affected", "likely", "possible_victims", "excluded", "unknown")
        assert tuple(sum(getattr(each, field) for each in tallies) for field in fields) == whole
    ids = {line.name: line.ids for line in document.accounts}
    assert ids["beta"].affected == ("r2",)
    assert ids["beta"].likely == ("r3",)
    assert ids["gamma"].possible_victims == ("r4",)
    assert ids["delta"].unknown == ("r6",)
    assert document.accounts[0].tally.affected == 1


def test_json_has_the_counts_by_their_names_and_comes_back(make_relation: Make) -> None:
    """The document's JSON has the six counts at its top and decodes to the same document."""
    document = make_document(make_relation(ROWS), None)
    text = to_json(document)
    plain = json.loads(text)
    counts = {name: plain[name] for name in ("affected", "likely", "possible_victims", "excluded", "unknown", "clear")}
    assert counts == {"affected": 2, "likely": 1, "possible_victims": 1, "excluded": 1, "unknown": 1, "clear": 1}
    assert from_json(text.encode(), "x") == document


@pytest.mark.parametrize(
    "text", [b"", b"\xff", b"[]", b'{"schema": "kvfence-audit/1"}', b'{"schema": "kvfence-scope/1"}']
)
def test_what_is_no_report_is_refused(text: bytes) -> None:
    """Anything but a whole report of this schema is refused with the file's name."""
    with pytest.raises(EvidenceError, match=r"some\.json"):
        from_json(text, "some.json")


def test_with_a_key_no_name_is_left(make_relation: Make) -> None:
    """Under a key neither an account nor a request id stands in the document; another key gives other pseudonyms."""
    texts = [to_json(make_document(make_relation(ROWS), key)) for key in (KEY, KEY, KEY + b"!")]
    for name in ("acme", "beta", "gamma", "own-tests", '"r1"', '"r6"'):
        assert name not in texts[0]
    assert texts[0] == texts[1] != texts[2]


def test_the_order_of_rows_changes_nothing(make_relation: Make) -> None:
    """The same rows in another order give the same bytes."""
    one, other = (to_json(make_document(make_relation(rows), KEY)) for rows in (ROWS, ROWS[::-1]))
    assert one == other


def test_hidden_characters_are_shown(make_relation: Make) -> None:
    """An account or id with terminal escapes or direction marks is written with its code points."""
    hostile = row("id\u202e\x1b[2J", account="evil\x07\x9b")
    text = to_json(make_document(make_relation([hostile]), None))
    assert not any(char in text for char in "\u202e\x1b\x07\x9b")
    assert "u{202e}" in text


def test_no_more_ids_than_the_bound(make_relation: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids beyond the bound are left out and counted as left out; the worst classes come first."""
    monkeypatch.setattr("kvfence.scope.report.make.IDS_MAX", 3)
    document = make_document(make_relation(ROWS), None)
    ids = {line.name: line.ids for line in document.accounts}
    assert (ids["acme"].affected, ids["beta"].affected, ids["beta"].likely) == (("r1",), ("r2",), ("r3",))
    assert sum(each.left_out for each in ids.values()) == 3


def test_the_baseline_and_the_prober(make_relation: Make) -> None:
    """Rows that climb over the limit by even steps are named by their account; refused tries count too."""
    crowd = [
        row(f"c{index}", "over_pool" if index % 2 else "fits", account=f"user-{index % 20}", started=when(index * 97))
        | {"prompt_tokens": POOL + (40_000 + 1_777 * index if index % 2 else -(9_001 * (index % 23)) - 1)}
        for index in range(80)
    ]
    ladder = [
        row(f"l{step}", "refused" if step > 6 else "fits", account="prober", started=when(9_000 + 5 * step))
        | {"prompt_tokens": POOL - 20_000 + 3_000 * step, "status": 400 if step > 6 else 200}
        for step in range(14)
    ]
    behaviour = make_document(make_relation([*crowd, *ladder]), None).behaviour
    assert behaviour.verdict == "probing"
    assert [each.account for each in behaviour.tested if each.named] == ["prober"]
    assert any("prober is unlike the others: ladder" in sentence for sentence in behaviour.words)
    assert make_document(make_relation(crowd), None).behaviour.verdict == "ordinary"


def when(minutes: int) -> datetime:
    """Give a moment so many minutes into the window."""
    return datetime.fromisoformat("2026-08-28") + timedelta(minutes=minutes)
