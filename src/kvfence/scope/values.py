"""Fields become columns: numbers, times in UTC and statuses, with a bit set for every value that could not be read.

Written once, as ibis expressions: on files they run in DuckDB, with ``--backend`` where the logs lie. Not for: which
field is which column (``columns.py``), or whether a value is believed (``survey.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ibis
from msgspec import Struct

from kvfence.core.errors import SettingsError
from kvfence.scope.columns import KINDS, Pick, plain_name
from kvfence.scope.relation import REQUEST_COLUMNS

BAD_BITS = {
    "prompt_tokens": 1,
    "completion_tokens": 2,
    "status": 4,
    "ttft_ms": 8,
    "duration_ms": 16,
    "body_bytes": 32,
    "started": 64,
}
"""Bits of the column ``bad``: something stood there that is no value of the column's kind."""
NO_ZONE_BIT, DAY_ONLY_BIT = 128, 256
"""Bits of the column ``bad``: the time was read without a zone; or without an hour."""
ROW_BITS = 511
NO_ZONE_OF_COLUMN_BIT, DAY_ONLY_OF_COLUMN_BIT = 512, 1024
"""The same where the type of the column says it, of every row: these are counted by file, and no row is looked at."""
ZONE_BITS, DAY_BITS = NO_ZONE_BIT | NO_ZONE_OF_COLUMN_BIT, DAY_ONLY_BIT | DAY_ONLY_OF_COLUMN_BIT
NO_ZONE = "times without a zone, read as UTC or as --time-zone says"
DAY_ONLY = "times that name a day alone, read as its beginning"
AS_STORED = ("prompt_tokens", "completion_tokens")
"""Whole numbers that keep a file's own type: only without a cast does DuckDB group by a Parquet file's dictionary."""
_NOT_PACKED = ("", "-", "identity", "none", "null")

_OK_WORDS = ("success", "succeeded", "ok", "completed", "complete", "finished", "stop", "length", "status_code_ok")
_FAILED_WORDS = ("failure", "failed", "error", "refused", "rejected", "status_code_error")
_BROKEN_WORDS = ("cancelled", "canceled", "aborted", "abort", "timeout", "disconnected")
_EPOCH_STEPS = ((1e11, 1e6), (1e14, 1e3), (1e17, 1.0))
"""Below so much a number is of seconds, milliseconds, microseconds, else nanoseconds; and its factor to the third."""
_US_MAX = 4e15
"""Microseconds until about 2096; a later time is none that a log can hold."""

Value = Any
"""An ibis expression: ibis gives its types by the value's type, which is not known before the log is seen."""
Settle = Callable[[dict[str, Value]], Mapping[str, Value]]
"""Gives named expressions back as the columns of a table that has them, and nothing else of them."""


@ibis.udf.scalar.builtin(name="timezone", signature=(("string", "timestamp(6)"), "timestamp('UTC')"))  # type: ignore[untyped-decorator]
def _in_zone(zone: Value, local: Value) -> Value: ...


@ibis.udf.scalar.builtin(name="sha256", signature=(("string",), "string"))  # type: ignore[untyped-decorator]
def _sha256(text: Value) -> Value: ...


class Times(Struct):
    """What times leave out. no_zone, day_only: of rows; of_column: bits that a column's type sets for all."""

    no_zone: list[Value] = []
    day_only: list[Value] = []
    of_column: int = 0


class Reader(Struct, frozen=True):
    """How values are read. zone: of times that name none. can_try: the backend has a cast that gives null.

    knows_nan: the backend can tell NaN from numbers.
    """

    zone: str = "UTC"
    can_try: bool = True
    is_duckdb: bool = True
    knows_nan: bool = True


def as_it_is(named: dict[str, Value]) -> Mapping[str, Value]:
    """Leave expressions as they are, to be worked out wherever they stand."""
    return named


def typed(
    picks: Sequence[Pick], get: Callable[[Pick], Value], reader: Reader, settle: Settle = as_it_is
) -> dict[str, Value]:
    """Give the columns of ``REQUEST_COLUMNS`` and ``bad`` as expressions over a source's fields.

    settle: makes columns of expressions that are used again and again, so that each is worked out once a row: a cast
    that fails costs much more than one that does not.
    """
    named = settle({f"f{k}": get(each) for k, each in enumerate(picks)})
    for step in (_cast, _epoch_cast, _number, _value):
        found = {
            f"{step.__name__}{k}": value
            for k, each in enumerate(picks)
            if (value := step(each, _Seen(named, k), reader)) is not None
        }
        named = settle({**named, **found}) if found else named
    read: dict[str, list[tuple[Value, Value]]] = {column: [] for column in KINDS}
    times = Times()
    for k, each in enumerate(picks):
        seen = _Seen(named, k)
        read[each.column].append((seen.value, _unread(each, seen)))
        if KINDS[each.column] == "time":
            _look_at_time(seen, reader, times)
    values = {column: _coalesced([value for value, _bad in pairs]) for column, pairs in read.items()}
    values["prompt_tokens"] = _greatest([value for value, _bad in read["prompt_tokens"]])
    columns = {
        name: ibis.null(dtype) if values.get(name) is None else values[name] for name, dtype in REQUEST_COLUMNS.items()
    }
    _work_out(columns, values)
    columns["bad"] = _bad(read, values, times)
    return {
        name: value if name in AS_STORED and value.type().is_integer() else value.cast(dtype_of(name))
        for name, value in columns.items()
    }


def dtype_of(name: str) -> str:
    """Give the type of a column of requests."""
    return REQUEST_COLUMNS.get(name, "int64")


def only_floats(picks: Sequence[Pick], get: Callable[[Pick], Value]) -> list[Value] | None:
    """Give the fields of floats, where of all fields only a float that is no number gives no value; else None."""
    floats = []
    for each in picks:
        field, kind = get(each), KINDS[each.column]
        dtype = field.type()
        if kind == "span" and dtype.is_floating():
            floats.append(field)
        elif not (kind == "text" or (kind == "time" and (dtype.is_timestamp() or dtype.is_date())) or _is_sure(dtype)):
            return None
    return floats


def _is_sure(dtype: Any) -> bool:
    """Tell whether every value of a type is a whole number that fits."""
    found: bool = dtype.is_integer() and dtype.nbytes <= 8 and not dtype.is_unsigned_integer()
    return found


class _Seen(Struct, frozen=True):
    """What is known of one field so far: itself, and what was settled."""

    named: Mapping[str, Value]
    k: int

    @property
    def field(self) -> Value:
        return self.named[f"f{self.k}"]

    @property
    def cast(self) -> Value:
        """The field as a number, or as a time."""
        return self.named[f"_cast{self.k}"]

    @property
    def epoch(self) -> Value:
        """The field as a number where it is no time as it stands."""
        return self.named[f"_epoch_cast{self.k}"]

    @property
    def number(self) -> Value:
        """The field as a finite number."""
        return self.named[f"_number{self.k}"]

    @property
    def value(self) -> Value:
        return self.named[f"_value{self.k}"]


def _coalesced(values: Sequence[Value]) -> Value:
    """Give the first value that is there; None where no field stands for the column."""
    if not values:
        return None
    return values[0] if len(values) == 1 else ibis.coalesce(*values)


def _greatest(values: Sequence[Value]) -> Value:
    """Give the most that any field says: where two disagree of a length, the shorter one clears nobody."""
    most: Value = None
    for value in values:
        most = value if most is None else ibis.ifelse(value.isnull() | (most >= value), most, value)
    return most


def _work_out(columns: dict[str, Value], values: Mapping[str, Value]) -> None:
    """Work out what was not logged: the start from the end, spans from times; a packed body's size says nothing."""
    packed = values["body_encoding"]
    if packed is not None and values["body_bytes"] is not None:
        is_plain = packed.isnull() | packed.strip().lower().isin(_NOT_PACKED)
        columns["body_bytes"] = ibis.ifelse(is_plain, values["body_bytes"], ibis.null("int64"))
    ended, first, started = values["ended"], values["first_token"], values["started"]
    if ended is not None and values["duration_ms"] is not None:
        back = (values["duration_ms"] * 1000).cast("int64").as_interval("us")
        columns["started"] = ended - back if started is None else ibis.coalesce(started, ended - back)
    if started is None:
        return
    for column, later in (("duration_ms", ended), ("ttft_ms", first)):
        if later is not None:
            span = later.delta(started, unit="millisecond").cast("float64")
            own = values[column]
            columns[column] = span if own is None else ibis.coalesce(own, span)


def _bad(
    read: Mapping[str, Sequence[tuple[Value, Value | None]]],
    values: Mapping[str, Value],
    times: Times,
) -> Value:
    """Set a column's bit where none of its fields gave a value and one of them held something else."""
    total: Value = ibis.literal(0, "int64")
    for column, bit in BAD_BITS.items():
        flags = [bad for _value, bad in read[column] if bad is not None]
        if flags:
            held = flags[0]
            for flag in flags[1:]:
                held = held | flag
            total = total + (held & values[column].isnull()).cast("int64") * bit
    for flags, bit in ((times.no_zone, NO_ZONE_BIT), (times.day_only, DAY_ONLY_BIT)):
        if flags:
            total = total + ibis.coalesce(*flags, False).cast("int64") * bit
    return total + times.of_column if times.of_column else total


def _cast(pick: Pick, seen: _Seen, reader: Reader) -> Value | None:
    """Read a text as a number, or as a time; null where it is none."""
    kind = KINDS[pick.column]
    if kind == "text" or not seen.field.type().is_string():
        return None
    if kind != "time":
        return seen.field.try_cast("float64") if reader.can_try else seen.field.cast("float64")
    if not reader.can_try:
        return seen.field.cast("timestamp(6)")
    return _instant(seen.field.replace(",", "."))


def _instant(text: Value) -> Value:
    """Read a text as a time in UTC; one without a zone as it stands.

    DuckDB reads zones slowly, raises where one moves a time beyond its calendar's end, and leaves an offset out of a
    time without a zone: so only what may name one is read with it, and no year of five digits.
    """
    may_be_moved = text.contains("+") | text.substr(10).contains("-")
    plain = ibis.ifelse(may_be_moved, ibis.null("timestamp(6)"), text.try_cast("timestamp(6)"))
    with_zone = ibis.ifelse(plain.isnull() & ~text.re_search("[0-9]{5}[-/]"), text, ibis.null("string"))
    return ibis.coalesce(plain, with_zone.try_cast("timestamp('UTC')").cast("timestamp(6)"))


def _epoch_cast(pick: Pick, seen: _Seen, reader: Reader) -> Value | None:
    """Read a text that is no time as a number of seconds, or of less."""
    if KINDS[pick.column] != "time" or not seen.field.type().is_string() or not reader.can_try:
        return None
    return ibis.ifelse(seen.cast.isnull(), seen.field.replace(",", ".").try_cast("float64"), ibis.null("float64"))


def _number(pick: Pick, seen: _Seen, reader: Reader) -> Value | None:
    """Read a number; what is none, is not finite or does not fit is null."""
    field = seen.field
    dtype, kind = field.type(), KINDS[pick.column]
    if kind == "text" or (kind == "time" and not dtype.is_numeric()):
        return None
    if not dtype.is_string() and not dtype.is_floating():
        return field if dtype.is_numeric() else ibis.null("float64")
    number = seen.cast if dtype.is_string() else field
    if not (reader.can_try if dtype.is_string() else reader.knows_nan):
        return number
    return ibis.ifelse(number.isnan() | number.isinf(), ibis.null("float64"), number)


def _value(pick: Pick, seen: _Seen, reader: Reader) -> Value:
    kind = KINDS[pick.column]
    if kind == "text":
        return _text(pick, seen.field)
    if kind == "time":
        return _time(seen, reader)
    if kind == "status":
        return _status(seen, reader)
    if kind == "span":
        number = seen.number.cast("float64")
        return number * pick.scale if pick.scale != 1.0 else number
    return _whole(seen.number, reader)


def _unread(pick: Pick, seen: _Seen) -> Value | None:
    """Tell whether a field holds something that gave no value; None where that cannot be."""
    kind, dtype = KINDS[pick.column], seen.field.type()
    if kind == "text" or (kind == "status" and not dtype.is_string()):
        return None
    if kind == "time":
        if dtype.is_timestamp() or dtype.is_date():
            return None
        if not dtype.is_numeric() and not dtype.is_string():
            return seen.field.notnull()
    elif _is_sure(dtype):
        return None
    return ibis.ifelse(seen.value.isnull(), _held(seen.field), False)


def _text(pick: Pick, field: Value) -> Value:
    text = field if field.type().is_string() else field.cast("string")
    if pick.column == "account" and plain_name(pick.path[-1]).endswith("api_key"):
        # A key is never shown; its digest still tells accounts apart.
        return ibis.ifelse(text.startswith("sk-"), "key-" + _sha256(text)[:16], text)
    return text


def _held(field: Value) -> Value:
    """Tell whether a field holds something: empty strings and the dash of access logs are nothing."""
    dtype = field.type()
    return ~field.isin(["", "-", "null", "None"]) & field.notnull() if dtype.is_string() else field.notnull()


def _whole(number: Value, reader: Reader) -> Value:
    dtype = number.type()
    if _is_sure(dtype):
        return number
    fits = number.between(-9e18, 9e18)
    if dtype.is_floating():
        fits = fits & (number == number.floor())
    return ibis.ifelse(fits, number, ibis.null(dtype)).cast("int64") if reader.can_try else number.cast("int64")


def _status(seen: _Seen, reader: Reader) -> Value:
    number = _whole(seen.number, reader)
    if not seen.field.type().is_string():
        return number
    word = seen.field.lower()
    said = ibis.cases(
        (word.isin(_OK_WORDS), 200), (word.isin(_FAILED_WORDS), 500), (word.isin(_BROKEN_WORDS), 499), else_=number
    )
    # Numbers are many, words few: texts are compared only where there is no number.
    return ibis.ifelse(number.notnull(), number, said) if reader.can_try else said


def column_bits(dtype: Any) -> int:
    """Give what the type of a column of times leaves out of each."""
    if dtype.is_date():
        return NO_ZONE_OF_COLUMN_BIT | DAY_ONLY_OF_COLUMN_BIT
    return NO_ZONE_OF_COLUMN_BIT if dtype.is_timestamp() and dtype.timezone is None else 0


def _time(seen: _Seen, reader: Reader) -> Value:
    field = seen.field
    dtype = field.type()
    if dtype.is_timestamp():
        if dtype.timezone is None:
            return _from_zone(field.cast("timestamp(6)"), reader)
        return field.cast("timestamp('UTC')").cast("timestamp(6)")
    if dtype.is_date():
        return _from_zone(field.cast("timestamp(6)"), reader)
    if dtype.is_numeric():
        return _epoch(seen.number.cast("float64"))
    if not dtype.is_string():
        return ibis.null("timestamp(6)")
    if not reader.can_try:
        return seen.cast
    zoned = seen.cast
    shifted = ibis.ifelse(_is_naive(seen), _from_zone(zoned, reader), zoned) if reader.zone != "UTC" else zoned
    return ibis.coalesce(_plausible(shifted), _epoch(seen.epoch))


def _look_at_time(seen: _Seen, reader: Reader, times: Times) -> None:
    """Note what a time leaves out."""
    dtype = seen.field.type()
    times.of_column |= column_bits(dtype)
    if dtype.is_string() and reader.can_try:
        day_only = seen.cast.notnull() & ~seen.field.contains(":")
        times.no_zone.append(ibis.ifelse(_is_naive(seen), True, ibis.null("boolean")))
        times.day_only.append(ibis.ifelse(day_only, True, ibis.null("boolean")))


def _is_naive(seen: _Seen) -> Value:
    """Tell whether a text is a time without its zone."""
    text = seen.field
    tail = text.replace(",", ".").right(6)
    names_zone = text.contains(":") & (text.endswith("Z") | tail.re_search("[A-Za-z]$|[+-][0-9:]+$"))
    return seen.cast.notnull() & ~names_zone


def _plausible(time: Value) -> Value:
    """Leave out times that only a cast can make: infinity, the year 99999, years before the first."""
    held = time.between(ibis.timestamp("0001-01-02"), ibis.timestamp("2096-12-31"))
    return ibis.ifelse(held, time, ibis.null("timestamp(6)"))


def _from_zone(local: Value, reader: Reader) -> Value:
    if reader.zone == "UTC":
        return local
    if not reader.is_duckdb:
        raise SettingsError(["--time-zone works on files; in a warehouse store times with their zone"])
    return _in_zone(ibis.literal(reader.zone), local).cast("timestamp(6)")


def _epoch(number: Value) -> Value:
    """Read seconds, milliseconds, microseconds or nanoseconds since 1970, told apart by their size."""
    us = ibis.cases(*((number < limit, number * factor) for limit, factor in _EPOCH_STEPS), else_=number / 1000)
    sane = (number > 0) & (us < _US_MAX)
    since = ibis.ifelse(sane, us, ibis.null("float64")).cast("int64").as_interval("us")
    return (ibis.timestamp("1970-01-01") + since).cast("timestamp(6)")
