"""What a person or a program sees: tables, one JSON document, progress, errors.

With ``--json`` exactly one document goes to stdout; progress, tables and errors go to stderr.
Not for: logs (structlog, in the workers).
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

Report = Callable[[str, int, int], None]
"""Called with (stage, bytes done, bytes in all); 0 in all: not known; 1: a stage that is done or not done."""

_NO_WRAP = 1000


def console(stderr: bool = True) -> Console:
    """Make a console on the stream as it is now; colours, and a width to wrap at, only where it is a terminal."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=_NO_WRAP)


def print_error(headline: str, details: Iterable[str] = ()) -> None:
    """Write one red line to stderr, and the details below it, indented."""
    out = console()
    out.print(Text(headline, style="bold red"))
    for line in details:
        out.print(Text(f"  {line}"))


def print_note(text: str) -> None:
    """Write one plain line to stderr: progress that is not a result."""
    console().print(Text(text))


def print_json(document: object) -> None:
    """Write one JSON document to stdout, indented, with a newline at its end."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
    sys.stdout.flush()


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, stderr: bool = True) -> None:
    """Draw a table; numbers stand to the right, nothing is wrapped where the stream is no terminal."""
    body = [list(row) for row in rows]
    heading = Text(title, style="table.title") if title else None
    table = Table(title=heading, title_justify="left", header_style="bold", show_edge=False, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = bool(body) and all(isinstance(row[index], int | float) for row in body)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        table.add_row(*(Text(_cell(value)) for value in row))
    console(stderr).print(table)


@contextmanager
def progress(label: str) -> Iterator[Report]:
    """Show on stderr how far the block is: a bar on a terminal, a line for each stage and tenth elsewhere."""
    out = console()
    if not out.is_terminal:
        yield _LinePerTenth(label)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        yield _Bar(bar, label)


class _Bar:
    """Progress for a terminal."""

    def __init__(self, bar: Progress, label: str) -> None:
        self.bar, self.label, self.task = bar, label, bar.add_task(label, total=None)

    def __call__(self, stage: str, done: int, total: int) -> None:
        known = total if total > 1 else None
        self.bar.update(self.task, description=f"{self.label}: {stage}", completed=done, total=known)


class _LinePerTenth:
    """Progress for logs and pipes."""

    def __init__(self, label: str) -> None:
        self.label, self.last = label, ("", -1)

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = (stage, 10 * done // total if total > 1 else 0)
        if now == self.last:
            return
        self.last = now
        size = f" {done / 1e6:.0f} of {total / 1e6:.0f} MB" if total > 1 and done else ""
        print_note(f"{self.label}: {stage}{size}")


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.3g}" if isinstance(value, float) else str(value)
