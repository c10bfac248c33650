"""Requests out of the text logs of engines: SGLang's ``--log-requests`` lines and vLLM's request lines.

What a client wrote stands in these lines too. Values are read behind it only, from what the engine itself prints last.
Not for: JSON logs (``columns.py`` finds their fields), start-up lines (``startup.py``).
"""

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

Row = dict[str, object]

_SGLANG = re.compile(
    r"^\[(?P<at>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)[^\]]{0,80}\]\s.{0,200}?Finish: obj=", re.DOTALL
)
_VLLM = re.compile(
    r"(?P<at>(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d)\S* \[[^\]]{1,80}\] "
    r"(?P<what>Received request|Generated response|Aborted request|Aborted request\(s\)|Finished request) "
    r"(?P<id>[^\s:,]{1,200}?)[:.,]?(?=\s|$)"
)
_META = "'meta_info': {"
_OUT = "), out="
META_CHARS_MAX = 1 << 16
PENDING_MAX = 100_000


class EngineLog:
    """Reads lines of one engine's log and gives a row for each request that has ended, or was begun and not ended.

    Holds: at most ``PENDING_MAX`` begun requests; the oldest is given out unfinished above that.
    """

    def __init__(self, year: int) -> None:
        self.year = year
        self.engine = ""
        self.unreadable = 0
        self._pending: dict[str, Row] = {}

    def read(self, line: str) -> Iterator[Row]:
        """Give the rows that a line completes; a line that is about no request gives none."""
        if "Finish: obj=" in line[:400] and (match := _SGLANG.match(line)):
            self.engine = "sglang"
            row = _sglang_row(line, match["at"])
            if row is None:
                self.unreadable += 1
            else:
                yield row
        elif (found := _VLLM.search(line[:600])) is not None:
            self.engine = "vllm"
            yield from self._vllm(line, found)

    def rest(self) -> Iterator[Row]:
        """Give the requests of which no end was seen."""
        yield from self._pending.values()
        self._pending.clear()

    def _vllm(self, line: str, found: re.Match[str]) -> Iterator[Row]:
        at = found["at"] if found["at"][4:5] == "-" else f"{self.year}-{found['at']}"
        name = found["id"]
        if found["what"] == "Received request":
            if len(self._pending) >= PENDING_MAX:
                yield self._pending.pop(next(iter(self._pending)))
            self._pending[name] = {
                "request_id": name,
                "started": at,
                "prompt_tokens": _count_ids(line, "prompt_token_ids"),
            }
            return
        row = self._pending.pop(name, {"request_id": name})
        row["ended"] = at
        row["status"] = 499 if found["what"].startswith("Aborted") else 200
        if found["what"] == "Generated response":
            row["completion_tokens"] = _count_ids(line, "output_token_ids")
        yield row


def _sglang_row(line: str, at: str) -> Row | None:
    """Read a Finish line; the last ``meta_info`` is the engine's: what a client wrote stands before it."""
    where = line.rfind(_META)
    if where < 0 or len(line) - where > META_CHARS_MAX:
        return None
    meta = _literal(line[where + len(_META) - 1 :])
    if meta is None:
        return None
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, dict) else None
    status: object = 200
    if kind == "abort" and isinstance(reason, dict):
        status = reason.get("status_code") or 499
    row: Row = {
        "request_id": meta.get("id"),
        "prompt_tokens": meta.get("prompt_tokens"),
        "completion_tokens": meta.get("completion_tokens"),
        "status": status,
        "body_bytes": max(line.rfind(_OUT, 0, where) - line.find("Finish: obj="), 0) or None,
        "started": at,
    }
    latency = meta.get("e2e_latency")
    if isinstance(latency, float | int) and 0 <= latency < 1e6:
        row["duration_ms"] = latency * 1000
        row["started"] = _before(at, float(latency))
    return row


def _literal(text: str) -> dict[str, object] | None:
    """Read the Python dictionary at the start of a text; None where it is none."""
    for end in (position for position in range(len(text), 0, -1) if text[position - 1] == "}"):
        try:
            found = ast.literal_eval(text[:end])
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            if end < len(text) - 16:
                return None
            continue
        return found if isinstance(found, dict) else None
    return None


def _before(at: str, seconds: float) -> str:
    moment = datetime.fromisoformat(at.replace(",", ".")).replace(tzinfo=UTC)
    return (moment - timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S.%f")


def _count_ids(line: str, name: str) -> int | None:
    """Count the ids of the last list of a name; None where the list was not logged."""
    start = line.rfind(f"{name}: [")
    end = line.find("]", start)
    if start < 0 or end < 0:
        return None
    inside = line[start + len(name) + 3 : end].strip()
    return inside.count(",") + 1 if inside else 0
