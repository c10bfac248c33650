"""Lines as people's tools wrap them: colours, container, Ray and JSON wrappers, Markdown; and quotes made safe.

Not for: finding lines in a big text (``kvfence.evidence.scan``).
"""

import json
import re

from kvfence.evidence.facts import QUOTE_CHARS_MAX
from kvfence.evidence.readings import Place
from kvfence.evidence.redact import redact

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_VISIBLE_ANSI = re.compile(r"(?:\\u001b|\\x1b|\\033|␛|\^\[)\[[0-9;]{0,20}m")
_CRI = re.compile(r"^(?P<at>\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)) (?:stdout|stderr) (?P<tag>[FP]) ?")
_KUBECTL = re.compile(r"^\[pod/(?P<pod>[^\]\s]{1,300})\] ?")
_COMPOSE = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]{0,80}?)\s{0,40}\| ")
_MARKDOWN = re.compile(r"^(?:\s{0,3}>\s?)+")
_CODE = re.compile(r"^\s{0,3}(?:[-*] )?(?P<ticks>`{1,2})(?P<code>[^`]{1,20000})(?P=ticks)\s*$")
_TIME = re.compile(
    r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?|\b\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?"
)
_RAY = re.compile(
    r"\((?P<actor>[A-Za-z_][\w.:-]{0,80}?)(?:_DP(?P<dp>\d+))?(?:_[A-Z]+\d+)*(?:\s+rank=\d+)?\s+pid=(?P<pid>\d+)[^)]{0,80}\)"
)
_RANK = re.compile(r"\[[^\]]{0,60}?\bDP(?P<dp>\d+)\b[^\]]{0,40}\]")
_NEW_RECORD = re.compile(
    r"^\s*(?:$|\[|\{|\(|#|--|```|[|>*-] |\d{4}[-/]\d\d|\d\d:\d\d:\d\d|\d+\.\d\d\.\d{3}\.\d{3} |[IWEF]\d{4} |"
    r"(?:INFO|WARN|WARNING|ERROR|DEBUG|TRACE|CRITICAL|FATAL)\b|Traceback|File \"|\w+(?:Error|Exception|Warning): )"
)
_REQUEST = re.compile(
    r"\b(?:Receive|Finish)(?:d)?: obj=|\b\w{0,40}ReqInput\(|\bReceived request \S{1,200}: |\bGenerated response |"
    r"\bprompt: ['\"]|\b(?:input_)?text=['\"]|\\?\"(?:prompt|messages|content)\\?\"\s?:|"
    r"\"(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|CONNECT|TRACE) |"
    r"\b(?:rid|req(?:uest)?_?id|input_value)\\?['\"]?\s?[=:]|"
    r"\b(?:Added|Aborted|Aborting|Finished) request |\b(?i:model) [`'\"]"
)
"""Where a line begins to hold what a client may choose: a prompt, a request's own id, a path, a model's name."""
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_CONTROL.update({9: "\\t", 10: "\\n", 13: "\\r"})
_CONTROL.update(
    {code: f"\\u{code:04x}" for code in (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF)}
)
_MESSAGE_KEYS = ("log", "message", "msg", "MESSAGE", "event", "text", "line", "body", "content", "textPayload", "data")
_CHAT_KEYS = frozenset({"role", "prompt", "messages", "choices"})
"""A record with one of these is a conversation, not a log's line: its text is a client's."""
_TIME_KEYS = ("time", "timestamp", "ts", "@timestamp", "asctime")
JSON_CHARS_MAX = 1 << 20
_WINDOW_CHARS = 1 << 14


def strip_colour(text: str) -> str:
    """The text without terminal escapes, also where a tool printed the escape as visible characters."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return _VISIBLE_ANSI.sub("", text) if "[" in text else text


def quote(text: str, around: int = 0) -> str:
    """A bounded quote with control characters escaped and credentials taken out; ``around`` stays visible."""
    if len(text) > _WINDOW_CHARS:
        cut_off = max(0, around - _WINDOW_CHARS // 2)
        text, around = text[cut_off : cut_off + _WINDOW_CHARS], around - cut_off
    clean = redact(text)
    start = max(0, min(around - QUOTE_CHARS_MAX // 4, len(clean) - QUOTE_CHARS_MAX))
    cut = clean[start : start + QUOTE_CHARS_MAX].translate(_CONTROL)
    if start:
        cut = "…" + cut
    if len(cut) > QUOTE_CHARS_MAX or start + QUOTE_CHARS_MAX < len(clean):
        cut = cut[: QUOTE_CHARS_MAX - 1] + "…"
    return cut


class Unwrapped:
    """A raw line taken out of its wrappers. ``partial``: the container runtime cut it and the next line goes on."""

    __slots__ = ("at", "partial", "process", "text")

    def __init__(self, raw: str) -> None:
        self.text = strip_colour(raw.rstrip("\r\n"))
        self.at: str | None = None
        self.process = ""
        self.partial = False
        for _ in range(4):
            before = self.text
            self._peel()
            if self.text == before:
                break

    def _peel(self) -> None:
        if match := _CRI.match(self.text):
            self.at, self.partial = match["at"], match["tag"] == "P"
            self.text = self.text[match.end() :]
        if match := _KUBECTL.match(self.text):
            self.process, self.text = match["pod"], self.text[match.end() :]
        elif match := _COMPOSE.match(self.text):
            self.process, self.text = match["name"], self.text[match.end() :]
        if self.text[:6].lstrip().startswith(">"):
            self.text = _MARKDOWN.sub("", self.text)
        if "`" in self.text[:6] and (match := _CODE.match(self.text)):
            self.text = match["code"]
        if self.text.lstrip()[:1] == "{":
            self._open_json()
        self.text = strip_colour(self.text)

    def _open_json(self) -> None:
        record = json_record(self.text)
        if record is None:
            return
        message = _message(record)
        if message is None:
            return
        self.text = message.rstrip("\r\n")
        self.partial = self.partial or ("stream" in record and "log" in record and not message.endswith("\n"))
        for key in _TIME_KEYS:
            if isinstance(record.get(key), str):
                self.at = self.at or str(record[key])
        pod = record.get("kubernetes")
        if isinstance(pod, dict) and isinstance(pod.get("pod_name"), str):
            self.process = self.process or str(pod["pod_name"])


def json_record(text: str) -> dict[str, object] | None:
    """The line as a JSON object, or None."""
    if len(text) > JSON_CHARS_MAX:
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _message(record: dict[str, object]) -> str | None:
    if _CHAT_KEYS & record.keys():
        return None
    for key in _MESSAGE_KEYS:
        value = record.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, dict):
            return _message(value)
    fields = record.get("fields")
    return _message(fields) if isinstance(fields, dict) else None


def place_of(text: str, process: str = "") -> Place:
    """Whose line it is, from its prefix alone: the first 200 characters."""
    head = text[:200]
    rank = _RANK.search(head)
    rays = [match["dp"] for match in _RAY.finditer(head) if match["dp"] is not None]
    dp = rank["dp"] if rank else (rays[0] if rays else None)
    return Place(process, int(dp) if dp is not None else None)


def time_of(text: str) -> str | None:
    """The time stamp at the head of a line, as written."""
    match = _TIME.search(text[:120])
    return match[0] if match else None


def begins_record(text: str) -> bool:
    """Whether a line looks like the start of a record rather than the rest of a wrapped one."""
    return _NEW_RECORD.match(text) is not None


def request_starts(text: str) -> int:
    """Where a line begins to log a request, whose words are a client's; its length if it does not."""
    match = _REQUEST.search(text)
    return match.start() if match else len(text)


def joined(text: str, rest: tuple[str, ...], cut: bool) -> str:
    """A wrapped record put together again: with a space where words were wrapped, without where a column cut it."""
    parts = [text]
    for following in rest[:6]:
        if begins_record(following):
            break
        parts.append(following.strip() if not cut else following)
    return ("" if cut else " ").join(parts)
