"""The log: one canonical line a request on stderr, as JSON or for a console.

A line has ids, names from fixed sets, counts and times. Prompts, answers, token ids and keys are in none.
Not for: metrics (``metrics.py``) or the protocol's trace.
"""

import contextlib
import logging
import sys
from typing import Any, Literal, TextIO, cast

import structlog
from msgspec import Struct, json
from structlog.typing import FilteringBoundLogger

from kvfence.runtime.stages import STAGES, Journey


class RequestRecord(Struct):
    """What becomes known of one request while it is answered; the canonical line is made of it.

    ``journeys``: the way of each generation, in order; none where the request was refused before one began.

    Units:
        ttft_s, started_s, responded_s: seconds of the gateway's monotonic clock; ttft_s from arrival,
            responded_s when the answer's status was sent.
    """

    id: str
    route: str
    started_s: float
    method: str = "GET"
    tenant: str = ""
    status: int = 0
    reason: str = "ok"
    num_prompt: int = 0
    num_answer: int = 0
    ttft_s: float | None = None
    responded_s: float | None = None
    journeys: list[Journey] = []

    def fields(self, now_s: float) -> dict[str, object]:
        """Give the canonical line's fields."""
        base: dict[str, object] = {
            "request_id": self.id,
            "tenant": self.tenant,
            "route": self.route,
            "status": self.status,
            "reason": self.reason,
            "prompt_tokens": self.num_prompt,
            "answer_tokens": self.num_answer,
            "ttft_ms": None if self.ttft_s is None else round(self.ttft_s * 1e3, 1),
            "duration_ms": round((now_s - self.started_s) * 1e3, 1),
        }
        return {**base, **self._way(now_s)} if self.journeys else base

    def stages_s(self, now_s: float) -> dict[str, float]:
        """Give the seconds of each stage that began, of several generations the longest.

        A stage that did not end has lasted until now.
        """
        lasted: dict[str, float] = {}
        for journey in self.journeys:
            for stage, (began, ended) in journey.intervals().items():
                seconds = max(0.0, (now_s if ended is None else ended / 1e9) - began / 1e9)
                lasted[stage] = max(seconds, lasted.get(stage, 0.0))
        return lasted

    def _way(self, now_s: float) -> dict[str, object]:
        """Say which workers took part, how far it came, who refused it and how long each stage took."""
        first, lasted = self.journeys[0], self.stages_s(now_s)
        refusals = sorted({refusal for journey in self.journeys for refusal in journey.refusals})
        return {
            "prefill": first.prefill,
            "decode": first.decode,
            "attempts": sum(journey.num_attempts for journey in self.journeys),
            "stage": first.furthest,
            "refusals": refusals,
            **{f"{stage}_ms": round(lasted[stage] * 1e3, 1) if stage in lasted else None for stage in STAGES},
        }


class _LossyFile:
    """A file for lines that may be lost: a full disk costs the log, never an answer or a worker's replacement."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


def open_log(form: Literal["json", "console"] = "json", file: TextIO | None = None) -> FilteringBoundLogger:
    """Open a log of its own; nothing global is configured."""
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if form == "json":
        processors.append(structlog.processors.JSONRenderer(serializer=_serialize))
    else:
        processors.append(structlog.dev.ConsoleRenderer(colors=False))
    logger = structlog.wrap_logger(
        structlog.PrintLogger(cast(TextIO, _LossyFile(file or sys.stderr))),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    return cast(FilteringBoundLogger, logger)


def describe_crash(error: BaseException) -> dict[str, object]:
    """Say what failed and where, without the error's message: it could hold a client's text."""
    traceback, place = error.__traceback__, "unknown"
    while traceback is not None:
        code = traceback.tb_frame.f_code
        place = f"{code.co_filename.rpartition('/')[2]}:{traceback.tb_lineno} {code.co_name}"
        traceback = traceback.tb_next
    return {"error": type(error).__name__, "where": place}


def _serialize(event: object, **_: object) -> str:
    return json.encode(event).decode()
