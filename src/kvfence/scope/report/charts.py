"""Where the bars of the page's charts stand, as plain numbers that a template draws as SVG.

Places across are percent and heights are pixels, so that a chart fits a telephone without its text shrinking. Numbers
are rounded to hundredths: the same document gives the same bytes.
"""

from collections.abc import Sequence
from datetime import date, timedelta
from math import log2, log10

from msgspec import Struct

from kvfence.scope.report.document import AccountLine, Bar, Document, Line

ACCOUNTS_SHOWN = 15
LENGTHS_HEIGHT, DAYS_HEIGHT, BASE_HEIGHT = 220, 120, 64


class Column(Struct, frozen=True):
    """One bar: x, width in percent; heights in pixels, ``part`` of them marked; text: for whoever points at it."""

    x: float
    width: float
    height: float
    part: float
    text: str


class Mark(Struct, frozen=True):
    """A place on an axis with its text."""

    at: float
    text: str


class Lengths(Struct, frozen=True):
    """The histogram of prompt lengths, both axes logarithmic; limits: context and pool."""

    columns: tuple[Column, ...]
    ticks: tuple[Mark, ...]
    levels: tuple[Mark, ...]
    limits: tuple[Mark, ...]


class Days(Struct, frozen=True):
    """Affected requests by day above, long prompts by day below; shade: the period, from and to in percent."""

    affected: tuple[Column, ...]
    baseline: tuple[Column, ...]
    ticks: tuple[Mark, ...]
    shade: tuple[float, float]
    most: int
    most_long: int


class Share(Struct, frozen=True):
    """One account's bar: affected and long prompts, as shares of the largest in percent."""

    line: AccountLine
    affected: float
    long: float


def lengths(bars: Sequence[Bar], pool: int | None, context: int | None) -> Lengths | None:
    """Place the histogram of lengths; None where no length was logged."""
    if not bars:
        return None
    low = log2(bars[0].low)
    span = max(log2(bars[-1].high), log2(context or 1)) + 0.25 - low
    top = max(max(bar.requests, bar.affected) for bar in bars)

    def across(tokens: float) -> float:
        return round(100 * (log2(max(tokens, 1)) - low) / span, 2)

    columns = tuple(
        Column(
            across(bar.low),
            round(max(across(bar.high) - across(bar.low) - 0.25, 0.3), 2),
            _tall(bar.requests, top),
            _tall(bar.affected, top),
            f"{bar.low:,} to {bar.high - 1:,} tokens: {bar.requests:,} requests, {bar.affected:,} affected",
        )
        for bar in bars
    )
    ticks = tuple(Mark(across(4**power), _tokens(4**power)) for power in range(2, 12) if low <= 2 * power <= low + span)
    levels = tuple(Mark(_tall(10**power, top), f"{10**power:,}") for power in range(10) if 10**power <= top)
    limits = tuple(Mark(across(at), f"{name} {at:,}") for name, at in (("context", context), ("pool", pool)) if at)
    return Lengths(columns, ticks, levels, limits)


def _tall(count: int, top: int) -> float:
    """Give a logarithmic height: one request is seen, none is not."""
    return round((LENGTHS_HEIGHT - 56) * log10(1 + count) / log10(1 + max(top, 1)), 2)


def _tokens(count: int) -> str:
    return f"{count // 1024}k" if 1024 <= count < 1 << 20 else f"{count >> 20}M" if count >= 1 << 20 else str(count)


def days(lines: Sequence[Line], start: str | None, end: str | None) -> Days | None:
    """Place the timeline; None where no time was logged."""
    dated = {line.name: line.tally for line in lines if line.name}
    if not dated:
        return None
    first, last = date.fromisoformat(min(dated)), date.fromisoformat(max(dated))
    names = [str(first + timedelta(days=number)) for number in range((last - first).days + 1)]
    width = 100 / len(names)
    most = max((tally.affected + tally.likely for tally in dated.values()), default=0)
    most_long = max((tally.long for tally in dated.values()), default=0)
    affected, baseline = [], []
    for index, name in enumerate(names):
        tally = dated.get(name)
        found, likely, long = (tally.affected, tally.likely, tally.long) if tally else (0, 0, 0)
        x, wide = round(index * width + width * 0.1, 2), round(width * 0.8, 2)
        text = f"{name}: {found:,} affected, {likely:,} likely, {long:,} long prompts"
        tall = _share(found + likely, most, DAYS_HEIGHT - 30)
        affected.append(Column(x, wide, tall, _share(found, most, DAYS_HEIGHT - 30), text))
        baseline.append(Column(x, wide, _share(long, most_long, BASE_HEIGHT - 22), 0, text))
    step = max(len(names) // 4, 1)
    ticks = tuple(
        Mark(round((index + 0.5) * width, 2), names[index][5:]) for index in range(step // 2, len(names), step)
    )
    return Days(tuple(affected), tuple(baseline), ticks, _shade(names, start, end), most, most_long)


def _share(count: int, top: int, height: int) -> float:
    return round(height * count / top, 2) if top else 0.0


def _shade(names: Sequence[str], start: str | None, end: str | None) -> tuple[float, float]:
    """Give where the period begins and ends, in percent of the days shown; an end at midnight is the day before's."""
    first = date.fromisoformat(names[0])

    def across(moment: str | None, otherwise: float) -> float:
        if moment is None:
            return otherwise
        hours = int(moment[11:13]) / 24 + int(moment[14:16]) / 1440
        return min(max(((date.fromisoformat(moment[:10]) - first).days + hours) / len(names) * 100, 0.0), 100.0)

    return round(across(start, 0.0), 2), round(across(end, 100.0), 2)


def shares(document: Document) -> tuple[Share, ...]:
    """Give the most affected accounts with their bars."""
    shown = [line for line in document.accounts if line.tally.affected or line.tally.likely][:ACCOUNTS_SHOWN]
    top = max((max(line.tally.affected, line.tally.long) for line in shown), default=1)
    return tuple(Share(each, _percent(each.tally.affected, top), _percent(each.tally.long, top)) for each in shown)


def _percent(count: int, top: int) -> float:
    return round(100 * count / max(top, 1), 2)
