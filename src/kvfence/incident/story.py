"""The seven steps of the incident, told from a recorded trace with its own ids and pages.

Not for: which answer is told of beyond picking a readable one (``pick``), or how it is shown.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from kvfence.core.ids import AttemptId
from kvfence.incident.oracle import Leak, Reading, Slot

NOBODY = "nobody"
PLACEHOLDER_OWNER = "this request"


class PageRow(Struct, frozen=True):
    """One page of the leaked request, before its grant was used and when decode read it.

    ``shows``: the stamp that a guard finds in its head. ``wanted``: the stamp that the manifest promised.
    """

    page: int
    before: str
    after: str
    foreign: bool
    wanted: str
    shows: str


class Step(Struct, frozen=True):
    """One of the seven. ``lines``: where it stands in the traces."""

    number: int
    title: str
    text: str
    lines: tuple[str, ...] = ()


class Sample(Struct, frozen=True):
    """One leaked answer beside its source. Both are made-up texts of the test itself, which is why they are shown."""

    request: str
    attempt: str
    answer: str
    source: str
    source_tenant: str
    markers: tuple[str, ...]
    pages: tuple[PageRow, ...]
    steps: tuple[Step, ...]


class Telling(Struct, frozen=True):
    """What a story is made of. ``answer``: None where the protocol alone cannot know it."""

    reading: Reading
    readings: dict[AttemptId, Reading]
    tenants: dict[str, str]
    leak: Leak
    answer: str | None = None

    def owner(self, slots: Sequence[Slot | None]) -> str:
        """Name who wrote most of a page."""
        written = Counter(self.name(slot) for slot in slots if slot is not None)
        return written.most_common(1)[0][0] if written else NOBODY

    def name(self, slot: Slot) -> str:
        """Name who wrote a slot."""
        if slot.attempt == self.reading.attempt:
            return PLACEHOLDER_OWNER
        reading = self.readings.get(slot.attempt)
        tenant = self.tenants.get(reading.request, NOBODY) if reading is not None else NOBODY
        return f"{tenant}, answer" if slot.generated else tenant

    def stamp(self, page: int, slots: Sequence[Slot | None]) -> str:
        """Give the stamp in a page's head: the grant under which it was last written."""
        slot = next((slot for slot in slots if slot is not None), None)
        writer = self.readings.get(slot.attempt) if slot is not None else None
        if slot is None or writer is None:
            return "never written"
        if slot.generated or page not in writer.posted:
            return f"decode, attempt {writer.attempt.counter}"
        return f"prefill, grant {writer.origin_serial}, page {writer.source[writer.posted.index(page)]}"


def tell(telling: Telling) -> tuple[tuple[PageRow, ...], tuple[Step, ...]]:
    """Give the pages and the seven steps of one leaked answer."""
    rows = tuple(_row(telling, index) for index in range(len(telling.reading.pages)))
    return rows, _steps(telling, rows)


def _row(telling: Telling, index: int) -> PageRow:
    reading = telling.reading
    page, before, after = reading.pages[index], reading.before[index], reading.after[index]
    written = page in reading.posted
    wanted = (
        f"prefill, grant {reading.origin_serial}, page {reading.source[reading.posted.index(page)]}"
        if written
        else "nothing"
    )
    return PageRow(page, telling.owner(before), telling.owner(after), not written, wanted, telling.stamp(page, after))


def _steps(telling: Telling, rows: tuple[PageRow, ...]) -> tuple[Step, ...]:
    reading = telling.reading
    num_pages = len(reading.pages)
    said_no = [f"{d.guard}@{d.place}" for d in reading.decisions if not d.holds and not d.enforced]
    at_prefill = ", ".join(name for name in said_no if name.endswith("@prefill")) or "nobody"
    at_decode = ", ".join(dict.fromkeys(name for name in said_no if name.endswith("@decode"))) or "nobody"
    stale = [row for row in rows if row.foreign]
    owners = _by_owner(stale)
    posted = ", ".join(map(str, reading.posted))
    source = ", ".join(map(str, reading.source))
    given = "" if telling.answer is None else " The client sees nothing unusual but the text."
    texts = (
        (
            "The router tells decode the length; decode reserves",
            f"Attempt {reading.attempt} offers {reading.num_tokens} tokens; decode grants {num_pages} pages under "
            f"serial {reading.serial}: {', '.join(map(str, reading.pages))}.",
            ("gateway: Offer", "decode: Grant"),
        ),
        (
            "The prefill queue lets the refused request in",
            f"Its prompt of {reading.num_tokens} tokens does not fit; the scheduler keeps the error for later and "
            f"queues {reading.num_dispatched} token in its place. Said no, not obeyed: {at_prefill}.",
            ("prefill: StartTimer",),
        ),
        (
            "Prefill runs one token",
            f"It reserves page {source} under grant {reading.origin_serial} and computes the placeholder.",
            ("prefill: StartPrefill",),
        ),
        (
            "Prefill sends one page and signals that the transfer is complete",
            f"It writes page {posted} of decode's pool and says Sent for {reading.num_sent} token; "
            f"{reading.num_tokens} were offered.",
            ("prefill: Post", "prefill: Sent"),
        ),
        (
            "The decode queue accepts",
            f"Decode adopts all {num_pages} pages. Said no, not obeyed: {at_decode}.",
            ("decode: Verify", "decode: Adopt"),
        ),
        (
            f"Decode reads all {num_pages} pages",
            f"Only page {posted} was written for this request. What the others hold: {owners}.",
            ("decode: Emit",),
        ),
        (
            "The client gets HTTP 200 instead of 400",
            f"{telling.leak.num_tokens} tokens leave, computed from {sum(telling.leak.slots.values())} slots of "
            f"{', '.join(telling.leak.slots)}, {telling.leak.generated} of them from an answer.{given}",
            ("gateway: Finish", "decode: Ended"),
        ),
    )
    return tuple(
        Step(number, title, text, _lines(reading, where)) for number, (title, text, where) in enumerate(texts, 1)
    )


def _by_owner(rows: Sequence[PageRow]) -> str:
    pages: dict[str, list[str]] = {}
    for row in rows:
        pages.setdefault(row.after, []).append(str(row.page))
    return "; ".join(f"{', '.join(held)}: {_possessive(owner)}" for owner, held in pages.items())


def _possessive(owner: str) -> str:
    tenant, _, answer = owner.partition(", ")
    return f"an answer to {tenant}" if answer else tenant


def _lines(reading: Reading, where: Sequence[str]) -> tuple[str, ...]:
    found = ((each, reading.steps.get(each)) for each in where)
    return tuple(f"{each.split(':')[0]} line {number} ({each.split(': ')[1]})" for each, number in found if number)
