"""The real records, and short ways to read a text."""

import json
from pathlib import Path

from kvfence.evidence.document import facts_document
from kvfence.evidence.gather import read_text

RECORDS: list[dict] = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "engine-logs.jsonl").read_text("utf-8").splitlines()
]
BY_ID = {record["id"]: record for record in RECORDS}
TEXTS = [record for record in RECORDS if not record["snippet"].startswith("{")]


def ident(record: dict) -> str:
    """The record's name in a test's id."""
    return f"{record['id']}-{record['engine']}"


def document_of(text: str | bytes) -> dict:
    """The facts document's one object for a text."""
    (source,) = facts_document(read_text("source.txt", text))["sources"]
    return source


def wrong(record: dict, document: dict) -> dict:
    """What differs from the record's expectation: {key: (expected, read)}."""
    missing = object()
    return {
        key: (value, document.get(key, missing))
        for key, value in record["expect"].items()
        if key != "verdict" and document.get(key, missing) != value
    }
