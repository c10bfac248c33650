"""The requests and responses of OpenAI's API that this server speaks, field by field.

Not for: what a request becomes (``translate.py``) or errors (``responses.py``).
"""

from typing import Annotated, Protocol

from msgspec import UNSET, Meta, Struct, UnsetType, json

STOPS_MAX = 4
STOP_CHARS_MAX = 256
"""Longest stop string; as many characters of an answer may have to be held back."""

# ---- requests --------------------------------------------------------------------------------------------------------

_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class StreamOptions(Struct, frozen=True):
    """``include_usage``: one more chunk, with the token counts, before the end."""

    include_usage: bool | None = None


class GenerationFields(Struct, frozen=True, kw_only=True):
    """The fields that completions and chat completions share. ``top_k`` and ``ignore_eos`` are extensions.

    Units:
        temperature: 0 is greedy. top_k: 0 and -1 are off.
    """

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    max_tokens: _Count | None = None
    ignore_eos: bool | None = None


class CompletionBody(GenerationFields, frozen=True, kw_only=True):
    """POST /v1/completions. One prompt: a string, a list of one string, token ids, or a list of one such list."""

    prompt: str | list[str | int | list[int]]


class ContentPart(Struct, frozen=True):
    """One part of a message; only ``text`` parts are served."""

    type: str
    text: str | None = None


class ChatMessage(Struct, frozen=True):
    """One message. ``tool_calls`` is read only to be refused."""

    role: str
    content: str | list[ContentPart] | None = None
    tool_calls: list[object] | None = None


class ChatBody(GenerationFields, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: _Count | None = None


UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "web_search_options": (),
    "moderation": (),
}
"""Fields that would change the answer and are not served, with the values (besides null) that ask for nothing.

Every other unknown field is ignored: it does not change the text (user, metadata, store, service_tier, ...).
"""

# ---- responses -------------------------------------------------------------------------------------------------------


class Usage(Struct, frozen=True):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class _Delta(Struct, frozen=True, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class _ChunkChoice(Struct, frozen=True):
    delta: _Delta
    index: int = 0
    logprobs: None = None
    finish_reason: str | None = None


class _TextChoice(Struct, frozen=True):
    text: str
    index: int = 0
    logprobs: None = None
    finish_reason: str | None = None


class _Message(Struct, frozen=True):
    content: str
    role: str = "assistant"
    refusal: None = None


class _MessageChoice(Struct, frozen=True):
    message: _Message
    index: int = 0
    logprobs: None = None
    finish_reason: str | None = None


class _Envelope(Struct, frozen=True):
    """What every response and chunk has in common. ``usage``: absent, null or the counts."""

    id: str
    object: str
    created: int
    model: str
    choices: list[_ChunkChoice] | list[_TextChoice] | list[_MessageChoice]
    system_fingerprint: None = None
    usage: Usage | UnsetType | None = UNSET


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


class Shape(Protocol):
    """How one route words an answer; every method gives JSON."""

    def opening(self) -> bytes | None:
        """Give the chunk before any text, if this route has one."""
        ...

    def text(self, text: str) -> bytes:
        """Give one chunk of text."""
        ...

    def closing(self, finish_reason: str) -> bytes:
        """Give the chunk that says why the text ends."""
        ...

    def counts(self, usage: Usage) -> bytes:
        """Give the usage chunk."""
        ...

    def whole(self, text: str, finish_reason: str, usage: Usage) -> bytes:
        """Give the answer that is not streamed."""
        ...


class ChatShape:
    """Words chat completions."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming

    def opening(self) -> bytes:
        """Give the chunk that names the role."""
        return self._chunk([_ChunkChoice(_Delta(role="assistant", content=""))])

    def text(self, text: str) -> bytes:
        """Give one chunk of text."""
        return self._chunk([_ChunkChoice(_Delta(content=text))])

    def closing(self, finish_reason: str) -> bytes:
        """Give the chunk that says why the text ends."""
        return self._chunk([_ChunkChoice(_Delta(), finish_reason=finish_reason)])

    def counts(self, usage: Usage) -> bytes:
        """Give the usage chunk."""
        return self._chunk([], usage)

    def whole(self, text: str, finish_reason: str, usage: Usage) -> bytes:
        """Give the answer that is not streamed."""
        choices = [_MessageChoice(_Message(text), finish_reason=finish_reason)]
        return _encode(self._naming, "chatcmpl", "chat.completion", choices, usage)

    def _chunk(self, choices: list[_ChunkChoice], usage: Usage | None = None) -> bytes:
        counted = usage if self._naming.with_usage else UNSET
        return _encode(self._naming, "chatcmpl", "chat.completion.chunk", choices, counted)


class CompletionShape:
    """Words completions; a chunk has the same form as the whole answer."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming

    def opening(self) -> None:
        """There is no chunk before the text."""
        return

    def text(self, text: str) -> bytes:
        """Give one chunk of text."""
        return self._chunk([_TextChoice(text)])

    def closing(self, finish_reason: str) -> bytes:
        """Give the chunk that says why the text ends."""
        return self._chunk([_TextChoice("", finish_reason=finish_reason)])

    def counts(self, usage: Usage) -> bytes:
        """Give the usage chunk."""
        return self._chunk([], usage)

    def whole(self, text: str, finish_reason: str, usage: Usage) -> bytes:
        """Give the answer that is not streamed."""
        return _encode(self._naming, "cmpl", "text_completion", [_TextChoice(text, finish_reason=finish_reason)], usage)

    def _chunk(self, choices: list[_TextChoice], usage: Usage | None = None) -> bytes:
        counted = usage if self._naming.with_usage else UNSET
        return _encode(self._naming, "cmpl", "text_completion", choices, counted)


def _encode(
    naming: Naming,
    prefix: str,
    kind: str,
    choices: list[_ChunkChoice] | list[_TextChoice] | list[_MessageChoice],
    usage: Usage | UnsetType | None,
) -> bytes:
    answer_id = f"{prefix}-{naming.request_id}"
    return json.encode(_Envelope(answer_id, kind, naming.created, naming.model, choices, usage=usage))
