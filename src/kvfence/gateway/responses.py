"""Every answer that is not text, in one table: how an attempt ended -> what the client sees.

A refusal is a value and always reaches the client. No message repeats anything the client sent.
Not for: the shapes of successful answers (``openai.py``).
"""

from msgspec import UNSET, Struct, UnsetType, json

from kvfence.protocol.admission import Fit
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EngineWords

INVALID = "invalid_request_error"
SERVER = "server_error"


class Failure(Struct, frozen=True):
    """One error as the client gets it.

    Units:
        retry_after_s: when asking again makes sense; 0 where it never does.
        reason: the short name in logs and metrics; empty: the code, else the type.
    ``headers``: more headers of the answer.
    """

    status: int
    type: str
    message: str
    code: str | None = None
    param: str | None = None
    retry_after_s: int = 0
    reason: str = ""
    headers: dict[str, str] = {}

    @property
    def name(self) -> str:
        """What logs and metrics call it: one of a fixed set, never the client's text."""
        return self.reason or self.code or self.type


class ErrorFields(Struct, frozen=True):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct, frozen=True):
    """An error, in OpenAI's shape."""

    error: ErrorFields


class Ending(Struct, frozen=True):
    """One row: ``finish_reason`` for a full answer, everything else for an error."""

    status: int
    type: str = ""
    code: str = ""
    message: str = ""
    finish_reason: str | UnsetType = UNSET
    retry_after_s: int = 0


_NO_FOREIGN_TEXT = "Nothing of it reached you: the check stopped the answer before the token left."

ENDINGS: dict[EndReason, Ending] = {
    EndReason.STOP: Ending(200, finish_reason="stop"),
    EndReason.LENGTH: Ending(200, finish_reason="length"),
    EndReason.DOES_NOT_FIT: Ending(
        400, INVALID, "context_length_exceeded", "This request is larger than the server can hold."
    ),
    EndReason.REFUSED_AT_INTAKE: Ending(
        400,
        INVALID,
        "invalid_prompt",
        "The workers refused this prompt: it is empty, or names tokens the model has not.",
    ),
    EndReason.QUEUE_FULL: Ending(
        429, "rate_limit_error", "queue_full", "This key has too many requests open. Ask again soon.", retry_after_s=1
    ),
    EndReason.SERVER_FULL: Ending(
        503, SERVER, "server_full", "The server has as many requests open as it can. Ask again soon.", retry_after_s=1
    ),
    EndReason.NO_WORKER: Ending(
        503, SERVER, "no_worker", "No worker is ready to take this request. Ask again soon.", retry_after_s=5
    ),
    EndReason.WORKER_LOST: Ending(
        503, SERVER, "worker_lost", "A worker was lost while it had this request. Ask again soon.", retry_after_s=5
    ),
    EndReason.CANCELLED: Ending(
        503, SERVER, "cancelled", "The server cancelled this request. Ask again.", retry_after_s=1
    ),
    EndReason.PREEMPTED: Ending(
        503, SERVER, "preempted", "This request had to make room for older ones. Ask again soon.", retry_after_s=2
    ),
    EndReason.STALE: Ending(
        503, SERVER, "stale_attempt", "The workers had given this attempt up already. Ask again.", retry_after_s=1
    ),
    EndReason.SHUTDOWN: Ending(503, SERVER, "shutdown", "The server is shutting down.", retry_after_s=10),
    EndReason.DEADLINE: Ending(
        504, SERVER, "deadline_exceeded", "This request took longer than the server's deadline. Ask for fewer tokens."
    ),
    EndReason.COUNT_MISMATCH: Ending(
        500,
        SERVER,
        "kv_integrity",
        f"Another number of tokens was transferred than this request has. {_NO_FOREIGN_TEXT}",
    ),
    EndReason.LAYOUT_MISMATCH: Ending(
        500,
        SERVER,
        "kv_integrity",
        f"The two workers lay out KV pages differently. {_NO_FOREIGN_TEXT} Restart both with the same settings.",
    ),
    EndReason.STAMP_MISMATCH: Ending(
        500,
        SERVER,
        "kv_integrity",
        f"A KV page of this request held something that was not written for it. {_NO_FOREIGN_TEXT}",
    ),
    EndReason.DIGEST_MISMATCH: Ending(
        500, SERVER, "kv_integrity", f"A KV page of this request arrived damaged. {_NO_FOREIGN_TEXT}"
    ),
    EndReason.TRANSFER_FAILED: Ending(
        503, SERVER, "transfer_failed", "KV pages could not be moved between workers. Ask again.", retry_after_s=1
    ),
    EndReason.MODEL_ERROR: Ending(
        500, SERVER, "model_error", "The model failed on this request, or the grammar its answer must match did."
    ),
}
"""Every way an attempt can end. A test holds it complete."""

BROKEN_OFF = Failure(
    500, SERVER, "The generation broke off without saying why: a bug in this server.", "generation_broke_off"
)
INTERNAL = Failure(500, SERVER, "The server failed on this request: a bug in this server.", "internal_error")


def refuse_field(param: str, message: str, code: str | None = None) -> Failure:
    """Give the 400 that names a field."""
    return Failure(400, INVALID, message, code, param)


class Need(Struct, frozen=True):
    """What a request that does not fit would take. ``at_least``: the prompt was not counted to its end."""

    num_tokens: int
    max_tokens: int
    sums: tuple[Fit, ...]
    at_least: bool = False


def describe_need(need: Need, page_size: int) -> str:
    """Word the arithmetic of a request that does not fit."""
    total = need.num_tokens + need.max_tokens
    least = "at least " if need.at_least else ""
    words = [
        f"This request needs {least}{total} tokens ({need.num_tokens} prompt + {need.max_tokens} answer)"
        f" = {-(-total // page_size)} pages of {page_size}."
    ]
    if need.sums:
        words.append("; ".join(_describe_fit(fit) for fit in need.sums) + ".")
    words.append(_advise(need))
    return " ".join(words)


def _describe_fit(fit: Fit) -> str:
    verdict = "fits" if fit.holds else "does not fit"
    return f"{fit.resource}: {fit.needed} of {fit.available}, {verdict}"


def _advise(need: Need) -> str:
    """Say what the client can do: ask for a shorter answer where that is enough."""
    failing = [fit for fit in need.sums if not fit.holds]
    if len(failing) == 1 and failing[0].resource == "context tokens" and need.num_tokens < failing[0].available:
        return f"Lower max_tokens to {failing[0].available - need.num_tokens} or less, or shorten the prompt."
    return "Shorten the prompt or lower max_tokens."


def too_large(need: Need, page_size: int, param: str | None = None) -> Failure:
    """Refuse a request that does not fit, with the arithmetic of every pool."""
    row = ENDINGS[EndReason.DOES_NOT_FIT]
    message = describe_need(need, page_size)
    return Failure(row.status, row.type, message, row.code, param, reason=EndReason.DOES_NOT_FIT.value)


def failure_of(reason: EndReason, retry_after_s: int = 0) -> Failure:
    """Give the error of an attempt that ended without a full answer."""
    row = ENDINGS[reason]
    retry = retry_after_s or row.retry_after_s
    return Failure(row.status, row.type, row.message, row.code, retry_after_s=retry, reason=reason.value)


def failure_in_words(reason: EndReason, words: EngineWords) -> Failure:
    """Give an engine's own refusal, status and message as they came; the reason is ours, so that logs stay ours."""
    retry_after_s = ENDINGS[reason].retry_after_s
    kind = INVALID if words.status < 500 else SERVER
    return Failure(words.status, kind, words.message, retry_after_s=retry_after_s, reason=reason.value)


def finish_reason(reason: EndReason) -> str | None:
    """Give OpenAI's finish_reason; None where the ending is an error."""
    word = ENDINGS[reason].finish_reason
    return None if isinstance(word, UnsetType) else word


def error_body(failure: Failure) -> bytes:
    """Give the JSON of an error, in OpenAI's shape."""
    return json.encode(ErrorBody(ErrorFields(failure.message, failure.type, failure.param, failure.code)))


def error_headers(failure: Failure) -> dict[str, str]:
    """Give the headers that go with an error."""
    headers = {"content-type": "application/json", **failure.headers}
    if failure.retry_after_s:
        headers["retry-after"] = str(failure.retry_after_s)
    if failure.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers
