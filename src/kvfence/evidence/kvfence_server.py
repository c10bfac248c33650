"""kvfence's own server: the workers in ``/health``, the pages in ``/metrics``, the context in ``/v1/models``."""

import re
from collections.abc import Iterable, Iterator, Mapping

from kvfence.evidence.forms import reading
from kvfence.evidence.readings import Form, Found, Line, Notebook, Place

ENGINE = "kvfence"
_ROLES = ("prefill", "decode")


def is_health(answer: Mapping[str, object]) -> bool:
    """Whether an answer is that of our ``/health``: workers with their pools."""
    workers = answer.get("workers")
    return isinstance(workers, list) and all(isinstance(each, Mapping) and "pool_tokens" in each for each in workers)


def workers_of(answer: Mapping[str, object]) -> Iterator[tuple[Place, list[Found]]]:
    """Each worker's place and facts."""
    workers = answer["workers"]
    for worker in workers if isinstance(workers, list) else []:
        role, pool = str(worker.get("role")), worker.get("pool_tokens")
        if role in _ROLES and isinstance(pool, int) and pool > 0:
            yield _place(str(worker.get("worker") or role)), [Found("role", role), Found("pool_tokens", pool, 8)]


def _place(worker: str) -> Place:
    return Place(f"{worker} worker")


def _read_pages(match: re.Match[str], line: Line) -> Iterable[Found]:
    line.place = _place(match["worker"] or match["role"])
    yield Found("role", match["role"])
    yield Found("pool_pages", int(float(match["pages"])))


FORMS: tuple[Form, ...] = (
    reading(
        ENGINE,
        "kvfence_pool_pages",
        r"\bkvfence_pool_pages\{role=\"(?P<role>prefill|decode)\",state=\"\w{1,40}\""
        r"(?:,worker=\"(?P<worker>\w{1,20}-\d{1,3})\")?\} "
        r"(?P<pages>\d{1,12}(?:\.0)?)(?=\s|$)",
        _read_pages,
    ),
)


def derive(book: Notebook) -> None:
    """The page size, from tokens and pages."""
    pages = sum(int(each.value) for each in book.all("pool_pages"))
    pool, tokens = book.choose("pool_tokens"), book.number("pool_tokens")
    if pool is not None and tokens and pages and tokens % pages == 0:
        book.derive(Found("page_size", tokens // pages, 4), pool, "pool tokens / pages")
