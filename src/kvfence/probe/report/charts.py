"""Where things stand in the page's plots, as plain numbers that a template draws as SVG.

Places across are percent and heights are pixels, so that a plot fits a telephone without its text shrinking. Numbers
are rounded to hundredths: the same document gives the same bytes.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from kvfence.probe.finding import Severity
from kvfence.probe.report.document import Document, Line

LADDER_LANES = ("leak", "suspect", "answered", "empty", "broken", "refused")
LANE_HEIGHT, TTFT_HEIGHT, TENANT_HEIGHT = 26, 220, 22
TICKS = 5
DRAWN_MAX = 4_000
"""Requests that a plot shows; all with a finding are, and of the rest every so-many-th."""


class Mark(Struct, frozen=True):
    """A place on an axis with its text."""

    at: float
    text: str


class Dot(Struct, frozen=True):
    """One request: x in percent, y in pixels from the top; kind: its colour; text: for whoever points at it."""

    x: float
    y: float
    kind: str
    text: str


class Bar(Struct, frozen=True):
    """One request in time: x, width in percent, y in pixels."""

    x: float
    width: float
    y: float
    kind: str
    text: str


class Ladder(Struct, frozen=True):
    """Length of prompt across, what came of it in lanes; limits as lines."""

    dots: tuple[Dot, ...]
    lanes: tuple[Mark, ...]
    ticks: tuple[Mark, ...]
    limits: tuple[Mark, ...]
    height: int


class Speed(Struct, frozen=True):
    """Time to the first token against length; line: the prefill rate, y at its left and right end in pixels."""

    dots: tuple[Dot, ...]
    ticks: tuple[Mark, ...]
    levels: tuple[Mark, ...]
    line: tuple[float, float, float, float] | None


class Timeline(Struct, frozen=True):
    """When each tenant asked; phases: where each begins, as marks above."""

    bars: tuple[Bar, ...]
    lanes: tuple[Mark, ...]
    ticks: tuple[Mark, ...]
    phases: tuple[Mark, ...]
    height: int


def kind_of(line: Line) -> str:
    """Give what came of a request: a finding first, else how it ended."""
    if line.found in (Severity.LEAK, Severity.SUSPECT):
        return str(line.found)
    if line.trouble in ("refused", "limited"):
        return "refused"
    if line.trouble is not None and line.trouble != "left":
        return "broken"
    return "answered" if line.length or line.trouble == "left" else "empty"


def shown(lines: Sequence[Line]) -> list[Line]:
    """Give the lines that a plot has room for."""
    found = [line for line in lines if line.found in (Severity.LEAK, Severity.SUSPECT)][:DRAWN_MAX]
    rest = [line for line in lines if line.found not in (Severity.LEAK, Severity.SUSPECT)]
    step = max(1, -(-len(rest) // max(1, DRAWN_MAX - len(found))))
    return [*rest[::step], *found]


def ladder(document: Document) -> Ladder | None:
    """Place prompts by length; None where no length is known."""
    lines = [line for line in shown(document.lines) if line.tokens]
    if not lines:
        return None
    calibration = document.calibration
    limit = calibration.limit_tokens or calibration.limit_high
    top = 1.04 * max(*(line.tokens or 0 for line in lines), limit or 0, 1)
    used = [lane for lane in LADDER_LANES if any(kind_of(line) == lane for line in lines)]
    dots = tuple(
        Dot(_percent(line.tokens or 0, top), _middle(used.index(kind_of(line))), kind_of(line), _words(line))
        for line in lines
    )
    named = (("limit as measured", limit), ("context as advertised", calibration.advertised_tokens))
    limits = tuple(Mark(_percent(at, top), f"{name}: {at:,}") for name, at in named if at and at <= top)
    lanes = tuple(Mark(_middle(index), lane) for index, lane in enumerate(used))
    return Ladder(dots, lanes, _ticks(top, "{:,}"), limits, len(used) * LANE_HEIGHT + 18 * len(limits) + 24)


def speed(document: Document) -> Speed | None:
    """Place times to the first token; None where none is known."""
    lines = [line for line in shown(document.lines) if line.tokens and line.first_s is not None and line.status == 200]
    if not lines:
        return None
    top = 1.04 * max(line.tokens or 0 for line in lines)
    most_s = 1.05 * max(max(_ttft(line) for line in lines), 1e-3)

    def down(seconds: float) -> float:
        return round(TTFT_HEIGHT - 24 - (TTFT_HEIGHT - 44) * seconds / most_s, 2)

    dots = tuple(Dot(_percent(line.tokens or 0, top), down(_ttft(line)), kind_of(line), _words(line)) for line in lines)
    levels = tuple(Mark(down(at), f"{at:g} s") for at in _steps(most_s, 3))
    return Speed(dots, _ticks(top, "{:,}"), levels, _prefill(document, top, most_s))


def _prefill(document: Document, top: float, most_s: float) -> tuple[float, float, float, float] | None:
    """Give the ends of the prefill line: x and y of both, cut where it leaves the plot."""
    rate, base = document.calibration.tokens_per_s, document.calibration.overhead_s or 0.0
    if not rate:
        return None
    end = min(top, max(0.0, (most_s - base) * rate))
    height = TTFT_HEIGHT - 44
    ends = (TTFT_HEIGHT - 24 - height * min(seconds, most_s) / most_s for seconds in (base, base + end / rate))
    first, last = (round(each, 2) for each in ends)
    return 0.0, first, _percent(end, top), last


def timeline(document: Document) -> Timeline | None:
    """Place requests by time; None where there was none."""
    lines = shown(document.lines)
    if not lines:
        return None
    end_s = max(max(line.ended_s for line in document.lines), 1e-3)
    tenants = list(dict.fromkeys(line.tenant for line in document.lines))
    bars = tuple(
        Bar(
            _percent(line.sent_s, end_s),
            round(max(100 * (line.ended_s - line.sent_s) / end_s, 0.15), 2),
            float(tenants.index(line.tenant) * TENANT_HEIGHT + 40),
            kind_of(line),
            _words(line),
        )
        for line in lines
    )
    lanes = tuple(Mark(index * TENANT_HEIGHT + 40.0, tenant) for index, tenant in enumerate(tenants))
    begun: dict[str, float] = {}
    for line in document.lines:
        begun[line.phase] = min(line.sent_s, begun.get(line.phase, line.sent_s))
    phases = tuple(Mark(_percent(at, end_s), phase) for phase, at in sorted(begun.items(), key=lambda each: each[1]))
    return Timeline(bars, lanes, _ticks(end_s, "{:.3g} s"), phases, len(tenants) * TENANT_HEIGHT + 64)


def _ttft(line: Line) -> float:
    return max(0.0, (line.first_s or 0.0) - line.sent_s)


def _words(line: Line) -> str:
    tokens = "" if line.tokens is None else f", {line.tokens:,} tokens"
    first = "" if line.first_s is None else f", first token after {_ttft(line):.3f} s"
    end = line.trouble or f"{line.length:,} characters"
    return f"request {line.number}, {line.phase}, {line.tenant}{tokens}: {line.status or 'no status'}, {end}{first}"


def _middle(index: int) -> float:
    return index * LANE_HEIGHT + LANE_HEIGHT / 2


def _percent(part: float, top: float) -> float:
    return round(100 * part / top, 2)


def _ticks(top: float, form: str) -> tuple[Mark, ...]:
    """Give round numbers along an axis that begins at nought."""
    return tuple(Mark(_percent(at, top), form.format(int(at) if at == int(at) else at)) for at in _steps(top, TICKS))


def _steps(top: float, count: int) -> list[float]:
    """Give about so many round numbers from above nought up to the top."""
    size = 10.0 ** math.floor(math.log10(top / count))
    step = next(each * size for each in (1, 2, 5, 10) if each * size >= top / count)
    return [round(number * step, 9) for number in range(1, int(top / step) + 1)]
