"""The local DuckDB: bounded memory, a folder to spill to that goes away, and how far a long statement is.

Not for: what is asked of it (``ingest.py``, ``survey.py``, ``classes.py``).
"""

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import ibis
import pyarrow

from kvfence.core.errors import EvidenceError, SettingsError

Report = Callable[[str, int, int], None]
"""Called with (stage, done, in all), both of bytes."""

MEMORY_DEFAULT = "2500MB"
_POLL_S = 0.5


class Store:
    """A DuckDB of this process, and its folder for what does not fit into memory.

    Owner: whoever opened it (``open_store``); the folder is removed with it.
    """

    def __init__(self, folder: Path, memory: str, report: Report) -> None:
        self.folder = folder
        self.report = report
        self.size = 0
        config = {
            "memory_limit": memory,
            "temp_directory": str(folder / "duckdb"),
            "autoinstall_known_extensions": False,
            "threads": max(1, min(os.cpu_count() or 1, 8)),
        }
        try:
            self.ibis: Any = ibis.duckdb.connect(**config)
        except duckdb.Error as error:
            raise SettingsError([f"--memory {memory}: write a size such as 2500MB or 4GB"]) from error
        self.ibis.raw_sql("SET TimeZone = 'UTC'")
        # DuckDB makes one select of several better than ibis, which takes longer over it than most questions take.
        ibis.options.sql.fuse_selects = False
        self._files = 0

    def new_file(self, ending: str) -> Path:
        """Name a file of our own."""
        self._files += 1
        return self.folder / f"{self._files:05}.{ending}"

    def run(self, statement: str, stage: str = "") -> list[tuple[Any, ...]]:
        """Run a statement of DuckDB's own and give its rows; the stage's progress is shown."""
        with self.watching(stage):
            return list(self.ibis.con.execute(statement).fetchall())

    def holds(self, expression: Any) -> bool:
        """Tell whether an expression is of files and local tables, not of a warehouse."""
        found: bool = expression._find_backend(use_default=True) is self.ibis
        return found

    def keep(self, name: str, expression: Any, stage: str = "") -> Any:
        """Keep a result as a local table, wherever it is worked out."""
        with self.watching(stage):
            if self.holds(expression):
                self.ibis.con.execute(f"CREATE OR REPLACE TABLE {name} AS {self.ibis.compile(expression)}")
            else:
                self._take(name, expression.to_pyarrow())
            return self.ibis.table(name)

    def hold(self, name: str, rows: Sequence[Mapping[str, object]], schema: Mapping[str, str]) -> Any:
        """Keep rows of our own as a local table."""
        columns = {column: [row[column] for row in rows] for column in schema}
        self._take(name, pyarrow.table(columns, schema=ibis.schema(schema).to_pyarrow()))
        return self.ibis.table(name)

    def _take(self, name: str, table: Any) -> None:
        self.ibis.con.register("taken", table)
        self.ibis.con.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM taken")
        self.ibis.con.unregister("taken")

    @contextmanager
    def watching(self, stage: str) -> Iterator[None]:
        """Report how far the statement in the block is, as DuckDB tells it."""
        if not stage:
            yield
            return
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(stage, ended), daemon=True)
        self.report(stage, 0, max(self.size, 2))
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _watch(self, stage: str, ended: threading.Event) -> None:
        while not ended.wait(_POLL_S):
            done = self.ibis.con.query_progress()
            if done > 0:
                self.report(stage, int(self.size * done / 100), max(self.size, 2))


def rows_of(table: Any) -> list[dict[str, Any]]:
    """Run a question and give its rows."""
    rows: list[dict[str, Any]] = table.to_pyarrow().to_pylist()
    return rows


def number_of(count: Any) -> int:
    """Run a question for one whole number; nothing counts as nought."""
    return int(count.to_pyarrow().as_py() or 0)


@contextmanager
def open_store(report: Report, memory: str = MEMORY_DEFAULT, spill: Path | None = None) -> Iterator[Store]:
    """Open a store whose folder stands below ``spill``, or where temporary files stand.

    Raises:
        EvidenceError: the folder cannot be made.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="kvfence-scope-", dir=spill))
    except OSError as error:
        raise EvidenceError(f"--spill {spill}: {error.strerror}; name a folder with room for the logs") from error
    try:
        store = Store(folder, memory, report)
        try:
            yield store
        finally:
            store.ibis.disconnect()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
