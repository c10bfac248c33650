"""One try of a case, and what it shows: six answers, from a leak to a correct answer.

Not for: what is sent (``vllm.py``, ``sglang.py``), several tries and the whole run (``run.py``).
"""

from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import Any

from msgspec import Struct

from kvfence.probe.handoff.canary import Canary
from kvfence.probe.lexicon import Lexicon


class Answer(StrEnum):
    """What a case shows, the gravest first. UNKNOWN is never read as sound."""

    LEAK = "LEAK"  # the answer holds what only the other tenant's prompt held
    CRASHED = "CRASHED"  # decode no longer answers
    WRONG = "WRONG TEXT"  # an answer with 200 that is not the prompt's
    UNKNOWN = "COULD NOT TELL"
    REFUSED = "REFUSED"  # an error, and decode goes on
    CORRECT = "CORRECT"  # the prompt's own answer

    @property
    def is_bad(self) -> bool:
        """Does a sound pair never do this?"""
        return self in (Answer.LEAK, Answer.CRASHED, Answer.WRONG)


def gravest(answers: Iterable[Answer]) -> Answer:
    """Join answers; none at all is UNKNOWN."""
    ranked = list(Answer)
    return min(answers, key=ranked.index, default=Answer.UNKNOWN)


class Reply(Struct, frozen=True, kw_only=True):
    """What a worker answered. ``message``: its words about a refusal, cut short; never a prompt's.

    ``status``: None where nothing came, and ``message`` says why.
    """

    status: int | None
    ms: float
    text: str = ""
    message: str = ""
    prompt_tokens: int | None = None
    params: dict[str, Any] | None = None


class Tried(Struct, frozen=True, kw_only=True):
    """One try, done. ``computed``: how much of ``own`` prefill says it has computed, where it should be all of it."""

    reply: Reply
    own: Canary
    other: Canary
    computed: int | None = None


class Seen(Struct, frozen=True, kw_only=True):
    """One try, judged. ``chance``: that the other's words stand in such an answer by accident, where they do."""

    answer: Answer
    why: str
    reply: Reply | None = None
    chance: float | None = None


Reference = Callable[[], Awaitable[str]]
"""Asks for the answer that the prompt has without any hand-off."""


async def judge(tried: Tried, lexicon: Lexicon, *, is_up: bool, reference: Reference) -> Seen:
    """Say what a try shows. ``is_up``: decode answers after it."""
    reply = tried.reply
    if not is_up:
        return Seen(answer=Answer.CRASHED, why="decode answered before and does not any more", reply=reply)
    if reply.status is None:
        return Seen(answer=Answer.UNKNOWN, why=reply.message, reply=reply)
    if reply.status in (429, 503):
        return Seen(answer=Answer.UNKNOWN, why="decode asks to come back later", reply=reply)
    if reply.status != 200:
        return Seen(answer=Answer.REFUSED, why=reply.message, reply=reply)
    if tried.other.stands_in(reply.text, lexicon):
        why = "the answer holds a marker that only the other tenant's prompt held"
        return Seen(answer=Answer.LEAK, why=why, reply=reply, chance=tried.other.chance_in(reply.text))
    if tried.computed is not None and tried.computed < len(tried.own.tokens):
        why = f"prefill computed {tried.computed:,} tokens, and decode answered {len(tried.own.tokens):,}"
        return Seen(answer=Answer.WRONG, why=why, reply=reply)
    if tried.own.stands_in(reply.text, lexicon):
        return Seen(answer=Answer.CORRECT, why="the answer goes on with the prompt's own marker", reply=reply)
    if tried.own.stands_in(await reference(), lexicon):
        why = "without a hand-off the same prompt is answered with its own marker, and here it was not"
        return Seen(answer=Answer.WRONG, why=why, reply=reply)
    return Seen(answer=Answer.UNKNOWN, why="this model does not repeat its own marker, so no answer tells", reply=reply)
