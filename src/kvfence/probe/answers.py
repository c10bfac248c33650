"""An answer as it comes: pieces of a stream or one body, in OpenAI's two shapes, read without trusting them.

Not for: sending (``client.py``).
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import json

from kvfence.probe.excerpts import shorten
from kvfence.probe.exchange import Ask, Exchange, Trouble
from kvfence.probe.lexicon import lexicon_of
from kvfence.probe.refusals import read_refusal
from kvfence.probe.words import LISTS

HEARD_CHARS_MAX = 200_000
"""What comes behind them is not looked at."""

LOGPROBS_MAX = 64
BUFFERED_S = 0.05
BUFFERED_SHARE = 0.05
BUFFERED_PIECES = 4
COUNT_MAX = 1 << 53
ERROR_DEPTH_MAX = 16


class Hearing:
    """What was heard of one answer until now."""

    def __init__(self, ask: Ask, sent_s: float, mask: Callable[[str], str] = str) -> None:
        self.ask, self.sent_s, self._mask = ask, sent_s, mask
        self.status: int | None = None
        self.first_s: float | None = None
        self.last_s = sent_s
        self.num_pieces = 0
        self.finish_reason: str | None = None
        self.retry_after_s: float | None = None
        self.finished = False
        self.trouble: Trouble | None = None
        self.message = ""
        self.limit_tokens: int | None = None
        self.counted: int | None = None
        self.refusal = ""
        self._headers: list[str] = []
        self._text: list[str] = []
        self._aside: list[str] = []
        self._chars, self._came = 0, 0
        self._usage: dict[str, Any] = {}
        self._logprobs: list[tuple[str, float]] = []

    def head(self, headers: Iterable[tuple[str, str]]) -> None:
        """Take the headers of an answer; another's text may stand in the value of any."""
        self._headers += [value for _, value in headers]

    def fail(self, trouble: Trouble, message: str = "") -> None:
        """Note why there is no whole answer; the first reason stays."""
        if self.trouble is None:
            said = read_refusal(message, self.ask.own, self.ask.prompt, self._mask)
            self.trouble, self.message = trouble, said.message
            self.limit_tokens, self.counted = said.limit_tokens, said.counted

    def event(self, data: str, now_s: float) -> None:
        """Take one event of a stream."""
        try:
            frame = json.decode(data)
        except (ValueError, RecursionError):
            self.fail(Trouble.MALFORMED, "an event that is not JSON")
            return
        if not isinstance(frame, dict):
            self.fail(Trouble.MALFORMED, "an event that is not an object")
        elif frame.get("error"):
            self._fail_with(frame)
        else:
            self._take(frame, "delta", now_s)

    def body(self, raw: bytes, now_s: float) -> None:
        """Take one whole body of status 200."""
        try:
            frame = json.decode(raw)
        except (ValueError, RecursionError):
            self.fail(Trouble.MALFORMED, "a body that is not JSON" if raw.strip() else "an empty body")
            return
        if not isinstance(frame, dict) or not isinstance(frame.get("choices"), list):
            if isinstance(frame, dict) and frame.get("error"):
                self._fail_with(frame)
            else:
                self.refusal = all_texts(frame)
                self.fail(Trouble.MALFORMED, "no choices")
            return
        self._take(frame, "message", now_s)
        self.first_s, self.finished = None, True

    def _fail_with(self, frame: dict[str, Any]) -> None:
        self.refusal = all_texts(frame)
        self.fail(Trouble.BROKEN, error_text(frame))

    def _take(self, frame: dict[str, Any], part: str, now_s: float) -> None:
        usage = frame.get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        choices = frame.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index") in (None, 0):
                self._take_choice(choice, part, now_s)
            elif isinstance(choice, dict):  # nobody asked for a second one
                self._keep("", "".join(_said(choice, part)))

    def _take_choice(self, choice: dict[str, Any], part: str, now_s: float) -> None:
        text, aside = _said(choice, part)
        if text or aside:
            self.num_pieces += 1
            self.last_s = now_s
            self.first_s = now_s if self.first_s is None else self.first_s
        self._keep(text, aside)
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self.finish_reason, self.finished = reason, True
        if len(self._logprobs) < LOGPROBS_MAX and choice.get("logprobs"):
            self._logprobs += _logprobs(choice["logprobs"])

    def _keep(self, text: str, aside: str) -> None:
        for part, kept in ((text, self._text), (aside, self._aside)):
            kept.append(part[: HEARD_CHARS_MAX - self._chars])
            self._chars += len(kept[-1])
            self._came += len(part)

    def exchange(self, ended_s: float, mask: Callable[[str], str] = str) -> Exchange:
        """Give all that was heard. ``mask``: takes secrets out of what was answered."""
        usage = self._usage
        details = usage.get("prompt_tokens_details")
        said = (mask("".join(self._text)), mask("".join(self._aside)), mask("\n".join(self._headers)))
        heard = (*said, self._mask(self.refusal[:HEARD_CHARS_MAX]))
        known = lexicon_of(LISTS).known
        text, aside, headers, refusal = kept = tuple(shorten(each, known) for each in heard)
        beyond = self._came - self._chars + max(0, len(self.refusal) - HEARD_CHARS_MAX)
        return Exchange(
            ask=self.ask,
            sent_s=self.sent_s,
            ended_s=ended_s,
            first_s=None if self._is_buffered() else self.first_s,
            status=self.status,
            text=text,
            aside=aside,
            finish_reason=mask(self.finish_reason) if self.finish_reason else self.finish_reason,
            prompt_tokens=_count(usage.get("prompt_tokens")),
            completion_tokens=_count(usage.get("completion_tokens")),
            cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
            logprobs=tuple(self._logprobs[:LOGPROBS_MAX]),
            trouble=self.trouble,
            message=self.message,
            refusal=refusal,
            headers=headers,
            left_out=beyond + sum(max(0, len(each) - len(short)) for each, short in zip(heard, kept, strict=True)),
            limit_tokens=self.limit_tokens,
            retry_after_s=self.retry_after_s,
            num_pieces=self.num_pieces,
        )

    def _is_buffered(self) -> bool:
        """Did all pieces come at once, after a wait? Then something between held them back, and no time is known."""
        if self.first_s is None or self.num_pieces < BUFFERED_PIECES:
            return False
        spread, waited = self.last_s - self.first_s, self.first_s - self.sent_s
        return spread < BUFFERED_S and spread < BUFFERED_SHARE * waited


def error_text(frame: Any, depth: int = ERROR_DEPTH_MAX) -> str:
    """Find the words of an error, whatever its shape: OpenAI's, SGLang's, FastAPI's; none too deep or no words."""
    if depth == 0:
        return ""
    if isinstance(frame, dict):
        for name in ("message", "error", "detail"):
            if frame.get(name):
                return error_text(frame[name], depth - 1)
        return ""
    if isinstance(frame, list):
        return "; ".join(error_text(each, depth - 1) for each in frame[:3])
    return frame if isinstance(frame, str) else ""


def all_texts(frame: Any, depth: int = ERROR_DEPTH_MAX) -> str:
    """Give every text in a body that is no answer: another's may stand in any of them."""
    if isinstance(frame, dict):
        frame = [*frame, *frame.values()]
    if isinstance(frame, list) and depth:
        return "\n".join(filter(None, (all_texts(each, depth - 1) for each in frame)))
    return frame if isinstance(frame, str) else ""


def _said(choice: dict[str, Any], part: str) -> tuple[str, str]:
    """Give a choice's text, and apart what it thought and called, of chat or of a completion."""
    message = choice.get(part)
    return _texts(message) if isinstance(message, dict) else (_text(choice.get("text")), "")


def _texts(message: dict[str, Any]) -> tuple[str, str]:
    """Give a message's text, and apart what it thought and called."""
    aside = _text(message.get("reasoning_content")) or _text(message.get("reasoning"))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            aside += _text(function.get("name")) + _text(function.get("arguments"))
    return _text(message.get("content")), aside + _text(message.get("refusal"))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else ()
    return "".join(_text(part.get("text")) for part in parts if isinstance(part, dict))


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= COUNT_MAX else None


def _number(value: Any) -> float | None:
    """Read a number that a float holds; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _logprobs(found: Any) -> list[tuple[str, float]]:
    """Read chat's list of objects, or completions' two lists."""
    if not isinstance(found, dict):
        return []
    if isinstance(found.get("content"), list):
        pairs = [(each.get("token"), each.get("logprob")) for each in found["content"] if isinstance(each, dict)]
    else:
        tokens, values = found.get("tokens"), found.get("token_logprobs")
        pairs = list(zip(tokens, values, strict=False)) if isinstance(tokens, list) and isinstance(values, list) else []
    read = [(token, _number(value)) for token, value in pairs if isinstance(token, str)]
    return [(token, value) for token, value in read if value is not None]
