"""The seven steps of the incident, told from a recorded trace with its own ids and pages.

Not for: which answer is told of beyond picking a readable one (``pick``), or how it is shown.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

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
    """What a story is made of. ``tenants``: by request id."""

    reading: Reading
    readings: dict[AttemptId, Reading]
    tenants: dict[str, str]
    leak: Leak

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


STEPS = (
    (
        "The router tells decode the length; decode reserves",
        "Attempt {attempt} offers {num_tokens} tokens; decode grants {num_pages} pages under serial {serial}: {pages}.",
        ("gateway: Offer", "decode: Grant"),
    ),
    (
        "The prefill queue lets the refused request in",
        "Its prompt of {num_tokens} tokens does not fit; the scheduler keeps the error for later and queues "
        "{num_dispatched} token in its place. Said no, not obeyed: {prefill_said_no}.",
        ("prefill: StartTimer",),
    ),
    (
        "Prefill runs one token",
        "It reserves page {source} under grant {origin_serial} and computes the placeholder.",
        ("prefill: StartPrefill",),
    ),
    (
        "Prefill sends one page and signals that the transfer is complete",
        "It writes page {posted} of decode's pool and says Sent for {num_sent} token; {num_tokens} were offered.",
        ("prefill: Post", "prefill: Sent"),
    ),
    (
        "The decode queue accepts",
        "Decode adopts all {num_pages} pages. Said no, not obeyed: {decode_said_no}.",
        ("decode: Verify", "decode: Adopt"),
    ),
    (
        "Decode reads all {num_pages} pages",
        "Only page {posted} was written for this request. What the others hold: {owners}.",
        ("decode: Adopt",),
    ),
    (
        "The client gets HTTP 200 instead of 400",
        "{num_emitted} tokens leave, computed from {slots} slots of {tenants}, {generated} of them from an answer.",
        ("decode: Ended",),
    ),
)
"""The seven: title, what was seen, and the trace lines that say so."""


def _steps(telling: Telling, rows: tuple[PageRow, ...]) -> tuple[Step, ...]:
    reading, leak = telling.reading, telling.leak
    values = {
        "attempt": reading.attempt,
        "num_tokens": reading.num_tokens,
        "num_pages": len(reading.pages),
        "serial": reading.serial,
        "pages": _commas(reading.pages),
        "num_dispatched": reading.num_dispatched,
        "prefill_said_no": _said_no(reading, "prefill"),
        "source": _commas(reading.source),
        "origin_serial": reading.origin_serial,
        "posted": _commas(reading.posted),
        "num_sent": reading.num_sent,
        "decode_said_no": _said_no(reading, "decode"),
        "owners": _by_owner([row for row in rows if row.foreign]),
        "num_emitted": leak.num_tokens,
        "slots": sum(leak.slots.values()),
        "tenants": _commas(leak.slots),
        "generated": leak.generated,
    }
    return tuple(
        Step(number, title.format(**values), text.format(**values), _lines(reading, where))
        for number, (title, text, where) in enumerate(STEPS, 1)
    )


LISTED_MAX = 24
"""Of a longer list the beginning is told, and how long it is."""


def _commas(items: Iterable[object]) -> str:
    texts = [str(item) for item in items]
    more = f" ... ({len(texts):,} in all)" if len(texts) > LISTED_MAX else ""
    return ", ".join(texts[: LISTED_MAX // 2] if more else texts) + more


def _said_no(reading: Reading, place: str) -> str:
    """Name the guards that saw it here; they were asked, and away."""
    names = (f"{d.guard}@{d.place}" for d in reading.decisions if not d.holds and not d.enforced and d.place == place)
    return _commas(dict.fromkeys(names)) or "nobody"


def _by_owner(rows: Sequence[PageRow]) -> str:
    pages: dict[str, list[str]] = {}
    for row in rows:
        pages.setdefault(row.after, []).append(str(row.page))
    return "; ".join(f"{_commas(held)}: {_possessive(owner)}" for owner, held in pages.items())


def _possessive(owner: str) -> str:
    tenant, _, answer = owner.partition(", ")
    return f"an answer to {tenant}" if answer else tenant


def _lines(reading: Reading, where: Sequence[str]) -> tuple[str, ...]:
    found = ((each, reading.steps.get(each)) for each in where)
    return tuple(f"{each.split(':')[0]} line {number} ({each.split(': ')[1]})" for each, number in found if number)
