"""The same expressions run where the logs lie: SQLite stands for a warehouse."""

import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from kvfence.core.errors import EvidenceError, SettingsError
from tests.unit.scope.logbook import FIRST, POOL, entry, run, write

COLUMNS = (
    "id text, created timestamp, account text, model text, replica text, decode_worker text, prompt_tokens integer"
)


# ibis reads SQLite through pandas, and sets an option that pandas is about to take away.
@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
def test_a_warehouse_gives_what_files_give(tmp_path: Path) -> None:
    """Classes, reasons and aggregates of a table are those of the same rows in a file."""
    rows = [entry(f"short-{n}", 100 + n, FIRST + timedelta(minutes=n)) for n in range(90)]
    rows += [entry(f"leak-{n}", POOL + 1 + n, FIRST + timedelta(minutes=30 * n + 1)) for n in range(4)]
    rows += [entry("refused", POOL + 9, status=400), entry("unsaid", None), entry("absurd", -4)]
    database = sqlite3.connect(tmp_path / "logs.sqlite")
    database.execute(f"CREATE TABLE requests ({COLUMNS}, status integer, ttft_ms real, duration_ms real)")
    for row in rows:
        values = [row["id"], row["created"].replace("T", " ").removesuffix("Z"), row["account"], row["model"]]
        values += [row["replica"], row["decode_worker"], row["usage"]["prompt_tokens"]]
        values += [row["status"], row["ttft_ms"], row["duration_ms"]]
        database.execute(f"INSERT INTO requests VALUES ({', '.join('?' * len(values))})", values)
    database.commit()
    database.close()
    there = run(tmp_path, "requests", backend=f"sqlite://{tmp_path}/logs.sqlite")
    here = run(tmp_path, write(tmp_path / "a.jsonl", rows))
    assert there.counts == here.counts
    assert there.relation.reasons == here.relation.reasons
    assert there.totals == here.totals
    assert there.counts["AFFECTED"] == 4
    assert there.troubles() == {"negative_prompt_tokens": 1, "no_zone": 1}
    assert not there.relation.duplicates.exact


@pytest.mark.parametrize(
    ("url", "error", "says"),
    [
        ("nowhere://x", SettingsError, "--backend nowhere"),
        ("sqlite:///no/such/folder/x.sqlite", SettingsError, "no connection"),
        ("sqlite://", EvidenceError, "table requests cannot be read"),
    ],
)
def test_a_warehouse_that_cannot_be_asked(tmp_path: Path, url: str, error: type[Exception], says: str) -> None:
    """An unknown scheme, no connection and a table that is not there are said in words, without the URL's secrets."""
    with pytest.raises(error, match=says):
        run(tmp_path, "requests", backend=url)
