"""Requests out of the text access logs of nginx and Envoy, with token counts behind them as ``name=value``.

What a client sends (path, referer, agent) stands in quotes; only names outside quotes are fields.
"""

import re

Row = dict[str, object]

_NGINX = re.compile(
    r'^(?P<address>\S+) \S+ (?P<remote_user>\S+) \[(?P<time>[^\]]{10,40})\] "(?:[^"\\]|\\.)*" (?P<status>\d{1,3}|-) '
    r'(?P<sent>\d+|-)(?: "(?:[^"\\]|\\.)*" "(?:[^"\\]|\\.)*")?(?P<tail>.*)$'
)
_ENVOY = re.compile(
    r'^\[(?P<start_time>\d{4}-\d\d-\d\dT[^\]]{8,32})\] "(?:[^"\\]|\\.)*" (?P<status>\d{1,3}|-)(?: [^\s"]+){1,3}'
    r'(?: "[^"]*")? (?P<received>\d+) (?P<sent>\d+) (?P<duration>\d+|-) (?P<upstream>\d+|-)'
    r'(?: "(?:[^"\\]|\\.)*" "(?:[^"\\]|\\.)*" "(?P<request_id>[^"]*)" "(?:[^"\\]|\\.)*" "(?P<host>[^"]*)")?'
    r"(?P<tail>.*)$"
)
_PAIR = re.compile(r'(?:^|\s)(?P<name>[A-Za-z_][\w.-]{0,60})[=:](?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s"]+))')
_QUOTED = re.compile(r'(?<![=:])"(?:[^"\\]|\\.)*"')
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLF = re.compile(r"^(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d:\d\d:\d\d(?:\.\d+)?) ?([+-]\d\d):?(\d\d)$")
LINE_CHARS_MAX = 1 << 16


def access_row(line: str) -> Row | None:
    """Read one line of an access log; None where it is none."""
    if len(line) > LINE_CHARS_MAX:
        return None
    if (match := _ENVOY.match(line)) is not None:
        row: Row = {
            "start_time": match["start_time"],
            "status": match["status"],
            "bytes_received": match["received"],
            "duration_ms": match["duration"],
            "request_id": match["request_id"],
            "upstream_host": match["host"],
        }
    elif (match := _NGINX.match(line)) is not None:
        row = {"remote_user": match["remote_user"], "status": match["status"]}
    else:
        return None
    row |= _pairs(match["tail"])
    if "start_time" not in row:
        # nginx writes a line when the request has ended.
        ended = _iso(match["time"])
        row["ended" if any(name in row for name in ("request_time", "duration_ms", "duration")) else "started"] = ended
    return row


def _pairs(tail: str) -> Row:
    plain = _QUOTED.sub(" ", tail)
    return {
        match["name"]: match["quoted"] if match["bare"] is None else match["bare"] for match in _PAIR.finditer(plain)
    }


def _iso(time: str) -> str:
    match = _CLF.match(time)
    if match is None:
        return time
    day, month, year, clock, hours, minutes = match.groups()
    number = _MONTHS.index(month) + 1 if month in _MONTHS else 0
    return f"{year}-{number:02}-{day}T{clock}{hours}:{minutes}"
