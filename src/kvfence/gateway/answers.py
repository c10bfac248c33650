"""The shapes of successful answers, streamed and whole, as OpenAI's API has them.

Not for: requests (``openai.py``) or errors (``responses.py``).
"""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import UNSET, Struct, UnsetType, json

from kvfence.gateway.pieces import CallPart, Finish, Piece, SaidToken

LOGPROB_MIN = -9999.0
"""Stands for minus infinity, which JSON has not."""


class PromptDetails(Struct, frozen=True):
    """``cached_tokens``: of the prompt, not computed again: an earlier request of the same tenant had."""

    cached_tokens: int = 0


class Usage(Struct, frozen=True):
    """Token counts of one request: its prompt once, and the answers of all its choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails = PromptDetails()


class _TopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class _ContentLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[_TopLogprob]


class _ChatLogprobs(Struct, frozen=True):
    content: list[_ContentLogprob]
    refusal: None = None


class _TextLogprobs(Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class _Function(Struct, frozen=True, omit_defaults=True):
    arguments: str
    name: str | UnsetType = UNSET


class _CallDelta(Struct, frozen=True, omit_defaults=True):
    index: int
    function: _Function
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class _Call(Struct, frozen=True):
    id: str
    function: _Function
    type: str = "function"


class _Delta(Struct, frozen=True, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[_CallDelta] | UnsetType = UNSET


class _ChunkChoice(Struct, frozen=True):
    index: int
    delta: _Delta
    logprobs: _ChatLogprobs | None = None
    finish_reason: str | None = None


class _TextChoice(Struct, frozen=True):
    index: int
    text: str
    logprobs: _TextLogprobs | None = None
    finish_reason: str | None = None


class _Message(Struct, frozen=True):
    content: str | None
    role: str = "assistant"
    refusal: None = None
    tool_calls: list[_Call] | UnsetType = UNSET


class _MessageChoice(Struct, frozen=True):
    index: int
    message: _Message
    logprobs: _ChatLogprobs | None = None
    finish_reason: str | None = None


_C = TypeVar("_C", _ChunkChoice, _TextChoice, _MessageChoice)


class _Envelope(Struct, Generic[_C], frozen=True):
    """What every response and chunk has in common. ``usage``: absent, null or the counts."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[_C]
    system_fingerprint: None = None
    usage: Usage | UnsetType | None = UNSET


ChatAnswer = _Envelope[_MessageChoice]
TextAnswer = _Envelope[_TextChoice]


class ModelCard(Struct, frozen=True):
    """One served model."""

    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "kvfence"


class ModelList(Struct, frozen=True):
    """GET /v1/models."""

    data: list[ModelCard]
    object: str = "list"


class Naming(Struct, frozen=True):
    """What names one answer. ``with_usage``: the client asked for a usage chunk, so others say null.

    Units:
        created: seconds since 1970.
    """

    request_id: str
    model: str
    created: int
    with_usage: bool = False


class Whole(Struct):
    """One choice, collected to its end."""

    text: str = ""
    tokens: list[SaidToken] = []
    calls: dict[int, CallPart] = {}
    reason: str = ""

    def add(self, piece: Piece) -> None:
        """Put a piece behind what is there."""
        self.text += piece.text
        self.tokens += piece.tokens
        for part in piece.calls:
            begun = self.calls.get(part.number)
            joined = (
                part if begun is None else CallPart(part.number, begun.arguments + part.arguments, begun.id, begun.name)
            )
            self.calls[part.number] = joined


class Shape(Protocol):
    """How one route words an answer; every method gives JSON. ``usage``: counts so far, for clients that want them."""

    def opening(self, index: int) -> bytes | None:
        """Give the chunk before anything of a choice, if this route has one."""
        ...

    def piece(self, piece: Piece, usage: Usage | None = None) -> bytes:
        """Give one chunk."""
        ...

    def closing(self, finish: Finish, usage: Usage | None = None) -> bytes:
        """Give the chunk that says why a choice ends."""
        ...

    def counts(self, usage: Usage) -> bytes:
        """Give the usage chunk."""
        ...

    def whole(self, choices: Sequence[Whole], usage: Usage) -> bytes:
        """Give the answer that is not streamed."""
        ...


class ChatShape:
    """Words chat completions."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming

    def opening(self, index: int) -> bytes:
        """Give the chunk that names the role."""
        return self._chunk([_ChunkChoice(index, _Delta(role="assistant", content=""))])

    def piece(self, piece: Piece, usage: Usage | None = None) -> bytes:
        """Give one chunk."""
        calls = [_call_delta(part) for part in piece.calls] or UNSET
        content = UNSET if calls and not piece.text else piece.text
        delta = _Delta(content=content, tool_calls=calls)
        return self._chunk([_ChunkChoice(piece.index, delta, _chat_logprobs(piece.tokens))], usage)

    def closing(self, finish: Finish, usage: Usage | None = None) -> bytes:
        """Give the chunk that says why a choice ends."""
        return self._chunk([_ChunkChoice(finish.index, _Delta(), finish_reason=finish.reason)], usage)

    def counts(self, usage: Usage) -> bytes:
        """Give the usage chunk."""
        return self._chunk([], usage)

    def whole(self, choices: Sequence[Whole], usage: Usage) -> bytes:
        """Give the answer that is not streamed."""
        worded = [
            _MessageChoice(index, _message(each), _chat_logprobs(each.tokens), each.reason)
            for index, each in enumerate(choices)
        ]
        return _encode(self._naming, ("chatcmpl", "chat.completion"), worded, usage)

    def _chunk(self, choices: list[_ChunkChoice], usage: Usage | None = None) -> bytes:
        counted = usage if self._naming.with_usage else UNSET
        return _encode(self._naming, ("chatcmpl", "chat.completion.chunk"), choices, counted)


class CompletionShape:
    """Words completions; a chunk has the same form as the whole answer."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming

    def opening(self, index: int) -> None:  # noqa: ARG002 - the interface's form
        """There is no chunk before the text."""
        return

    def piece(self, piece: Piece, usage: Usage | None = None) -> bytes:
        """Give one chunk."""
        return self._chunk([_TextChoice(piece.index, piece.text, _text_logprobs(piece.tokens))], usage)

    def closing(self, finish: Finish, usage: Usage | None = None) -> bytes:
        """Give the chunk that says why a choice ends."""
        return self._chunk([_TextChoice(finish.index, "", finish_reason=finish.reason)], usage)

    def counts(self, usage: Usage) -> bytes:
        """Give the usage chunk."""
        return self._chunk([], usage)

    def whole(self, choices: Sequence[Whole], usage: Usage) -> bytes:
        """Give the answer that is not streamed."""
        worded = [
            _TextChoice(index, each.text, _text_logprobs(each.tokens), each.reason)
            for index, each in enumerate(choices)
        ]
        return _encode(self._naming, ("cmpl", "text_completion"), worded, usage)

    def _chunk(self, choices: list[_TextChoice], usage: Usage | None = None) -> bytes:
        counted = usage if self._naming.with_usage else UNSET
        return _encode(self._naming, ("cmpl", "text_completion"), choices, counted)


def _message(whole: Whole) -> _Message:
    calls = [_Call(part.id, _Function(part.arguments, part.name)) for _, part in sorted(whole.calls.items())]
    return _Message(None if calls and not whole.text else whole.text, tool_calls=calls or UNSET)


def _call_delta(part: CallPart) -> _CallDelta:
    if not part.id:
        return _CallDelta(part.number, _Function(part.arguments))
    return _CallDelta(part.number, _Function(part.arguments, part.name), part.id, "function")


def _chat_logprobs(tokens: Sequence[SaidToken]) -> _ChatLogprobs | None:
    if not tokens:
        return None
    return _ChatLogprobs(
        [
            _ContentLogprob(
                _shown(token.text),
                _finite(token.logprob),
                list(token.text),
                [_TopLogprob(_shown(text), _finite(logprob), list(text)) for text, logprob in token.top],
            )
            for token in tokens
        ]
    )


def _text_logprobs(tokens: Sequence[SaidToken]) -> _TextLogprobs | None:
    """The chosen token is among the likeliest ones even where it was none of them."""
    if not tokens:
        return None
    tops: list[dict[str, float]] = []
    for token in tokens:
        tops.append({})
        for text, logprob in (*token.top, (token.text, token.logprob)):
            tops[-1].setdefault(_shown(text), _finite(logprob))
    return _TextLogprobs(
        [_shown(token.text) for token in tokens],
        [_finite(token.logprob) for token in tokens],
        tops,
        [token.offset for token in tokens],
    )


def _shown(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return max(logprob, LOGPROB_MIN)


def _encode(naming: Naming, kind: tuple[str, str], choices: Sequence[_C], usage: Usage | UnsetType | None) -> bytes:
    """Give the JSON of an answer. ``kind``: what its id begins with, and its object's name."""
    answer_id = f"{kind[0]}-{naming.request_id}"
    return json.encode(_Envelope(answer_id, kind[1], naming.created, naming.model, choices, usage=usage))
