"""Every real record gives exactly the facts that its text proves."""

import pytest

from tests.audit.evidence.records import BY_ID, RECORDS, document_of, ident, wrong

# Keys that a record expects, which every document must have, null or not.
KEYS = sorted({key for record in RECORDS for key in record["expect"]} - {"verdict"})


def test_no_record_was_dropped() -> None:
    """All the records are there."""
    assert len(RECORDS) == 57


@pytest.mark.parametrize("record", RECORDS, ids=ident)
def test_the_facts_of_a_record(record: dict) -> None:
    """Each expected value is read, and each expected null stays null."""
    document = document_of(record["snippet"])
    assert wrong(record, document) == {}
    assert set(KEYS) <= document.keys()


@pytest.mark.parametrize("record", RECORDS, ids=ident)
def test_each_value_says_where_it_was_read(record: dict) -> None:
    """Every value that is not null has a place and a quote under ``sources``."""
    document = document_of(record["snippet"])
    for key in set(KEYS) - {"event", "real_data"}:
        if document[key] is not None:
            origin = document["sources"][key]
            assert origin["where"].startswith("source.txt")
            assert len(origin["quote"]) <= 202


@pytest.mark.parametrize("record", RECORDS, ids=ident)
def test_the_engine_of_a_record(record: dict) -> None:
    """The engine is told from the lines, where they are an engine's own; never another one."""
    assert document_of(record["snippet"])["engine"] in {record["engine"], None}


def test_a_default_names_its_source() -> None:
    """A block size that no line states is marked as the documented default of the engine and version."""
    origin = document_of(BY_ID["L077"]["snippet"])["sources"]["page_size"]
    assert origin["default_of"].startswith("lmdeploy")
