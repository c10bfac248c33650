"""Rows of a synthetic log as columns of numbers, and as the Arrow batches that are written.

Names stand once, in ``Names``; rows hold their places. A length of -1 and a time of NaN are not logged.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from kvfence.core.invariant import require
from kvfence.scope.synth.plan import EAST_HOURS, EAST_REPLICA

Rows = dict[str, NDArray[Any]]

COLUMNS: dict[str, Any] = {
    "time": np.int64,
    "id": np.uint64,
    "account": np.int32,
    "model": np.int32,
    "replica": np.int32,
    "decode": np.int32,
    "prompt": np.int64,
    "cached": np.int64,
    "completion": np.int64,
    "status": np.int16,
    "ttft": np.float64,
    "duration": np.float64,
    "request_bytes": np.int64,
    "response_bytes": np.int64,
    "agent": np.int32,
    "stream": np.bool_,
}

AGENTS = ("openai-python/3.57", "openai-node/6.2", "curl/8.9", "langchain/1.4", "go-client/2.1", "browser")
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), dtype=np.uint8).reshape(256, 2)


class Names(Struct, frozen=True):
    """What the rows' numbers stand for."""

    accounts: Sequence[str]
    models: Sequence[str]
    replicas: Sequence[str]
    decodes: Sequence[str]


def joined(parts: Sequence[Rows]) -> Rows:
    """Put rows behind each other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}


def taken(rows: Rows, which: NDArray[Any]) -> Rows:
    """Give the rows that a mask or a list of places names, in its order."""
    return {name: column[which] for name, column in rows.items()}


def size(rows: Rows) -> int:
    """Give the number of rows; all columns are as long.

    Raises:
        InvariantBroken: a column is missing or of another length: a bug in the maker.
    """
    lengths = {len(rows[name]) for name in COLUMNS}
    require(len(lengths) == 1, "columns of a synthetic log differ in length")
    return lengths.pop()


def batch(rows: Rows, names: Names, zones: bool) -> pa.RecordBatch:
    """Give rows as a gateway would log them; zones: times as text with their zone, else as instants."""
    lengths = {name: rows[name] for name in ("prompt", "cached", "completion")}
    columns = {
        "time": _times(rows, zones),
        "request_id": _ids(rows["id"]),
        "account_id": _named(rows["account"], names.accounts),
        "model": _named(rows["model"], names.models),
        "endpoint": _named(np.zeros(size(rows), np.int32), ["/v1/chat/completions"]),
        "stream": pa.array(rows["stream"]),
        "replica": _named(rows["replica"], names.replicas),
        "decode_worker": _named(rows["decode"], names.decodes),
        **{f"{name}_tokens": pa.array(value, mask=value < 0) for name, value in lengths.items()},
        "status": pa.array(rows["status"]),
        "ttft_ms": _milliseconds(rows["ttft"]),
        "duration_ms": _milliseconds(rows["duration"]),
        "request_bytes": pa.array(rows["request_bytes"]),
        "response_bytes": pa.array(rows["response_bytes"]),
        "user_agent": _named(rows["agent"], AGENTS),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _named(places: NDArray[Any], names: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(places), pa.array(list(names), pa.string()))


def _milliseconds(values: NDArray[Any]) -> pa.Array:
    return pa.array(np.round(values, 1), mask=np.isnan(values))


def _times(rows: Rows, zones: bool) -> pa.Array:
    instants = pa.array(rows["time"], pa.timestamp("ms", tz="UTC"))
    if not zones:
        return instants
    east = rows["replica"] == EAST_REPLICA
    local = pa.array(rows["time"] + np.where(east, EAST_HOURS * 3_600_000, 0), pa.timestamp("ms"))
    text = pc.replace_substring(local.cast(pa.string()), " ", "T")
    zone = pc.if_else(pa.array(east), f"+{EAST_HOURS:02d}:00", "Z")
    return pc.binary_join_element_wise(text, zone, "")


def _ids(numbers: NDArray[Any]) -> pa.Array:
    """Write ``req-`` and sixteen hexadecimal digits, without a Python string for each row."""
    count, prefix = len(numbers), np.frombuffer(b"req-", dtype=np.uint8)
    digits = _HEX[numbers.astype(">u8").view(np.uint8)].reshape(count, 16)
    text = np.empty((count, 20), dtype=np.uint8)
    text[:, :4], text[:, 4:] = prefix, digits
    offsets = np.arange(0, 20 * (count + 1), 20, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets.tobytes()), pa.py_buffer(text.tobytes()))


def request_numbers(first: int, count: int, seed: int) -> NDArray[np.uint64]:
    """Give numbers that look random and never repeat: splitmix64, a bijection of the row's number."""
    with np.errstate(over="ignore"):
        mixed = np.arange(first, first + count, dtype=np.uint64) + np.uint64(seed * 0x9E3779B9 % 2**63)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return mixed ^ (mixed >> np.uint64(31))


def request_id(number: int) -> str:
    """Give the id that a row's number is written as."""
    return f"req-{number:016x}"
