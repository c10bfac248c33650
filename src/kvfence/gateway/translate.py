"""A request body in OpenAI's shape becomes a core Request, or the Failure the client gets.

Bounded first, tokenised after: what its bytes alone prove too long is never tokenised, and tokenising stops one token
above the context. No failure repeats anything the client sent.
Not for: whether a request fits or may queue now (the dispatcher asks), or who the client is (``registry.py``).
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from kvfence.core.ids import RequestId, TenantId
from kvfence.core.request import Request, SamplingParams
from kvfence.gateway.bodies import read_body
from kvfence.gateway.openai import (
    STOP_CHARS_MAX,
    STOPS_MAX,
    ChatBody,
    ChatMessage,
    CompletionBody,
    GenerationFields,
)
from kvfence.gateway.responses import INVALID, Failure, Need, refuse_field, too_large
from kvfence.protocol.admission import Capacity, fits

COMPLETION_TOKENS = 16
"""Tokens of a completion that does not say how many: OpenAI's default."""

ROLES = ("system", "developer", "user", "assistant")


class TextStream(Protocol):
    """Generated ids to text, as they come."""

    def push(self, token_ids: Iterable[int]) -> str:
        """Take more ids; give the text that is complete by now."""
        ...

    def flush(self) -> str:
        """Give what is left."""
        ...


class TextTokenizer(Protocol):
    """What the gateway needs of a tokenizer. Implemented by ``models/tokenizer.py`` and by fakes in tests."""

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        ...

    @property
    def longest_token_bytes(self) -> int:
        """No token stands for more bytes of text."""
        ...

    def encode(self, text: str, num_tokens_max: int, *, add_special: bool = False) -> list[int]:
        """Tokenise, stopping at ``num_tokens_max + 1`` ids."""
        ...

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Give the prompt of a chat; a ValueError, without the messages' text, where it cannot."""
        ...

    def detokenizer(self, context: Sequence[int] = ()) -> TextStream:
        """Begin to turn generated ids into text."""
        ...


class Caller(Struct, frozen=True):
    """Whose request it is and how long it may take."""

    id: RequestId
    tenant: TenantId
    deadline_s: float


class Served(Struct, frozen=True):
    """What this server can do, as a translation needs it."""

    model: str
    tokenizer: TextTokenizer
    capacity: Capacity


class Translation(Struct, frozen=True):
    """A request the workers understand, and how its answer is to be given."""

    request: Request
    stream: bool
    with_usage: bool


def translate_chat(body: bytes, served: Served, caller: Caller) -> Translation | Failure:
    """Turn the body of /v1/chat/completions into a request."""
    chat = read_body(body, ChatBody)
    if isinstance(chat, Failure):
        return chat
    failure = _refuse_common(chat, served) or _refuse_messages(chat.messages)
    if failure is not None:
        return failure
    asked = chat.max_completion_tokens or chat.max_tokens
    if chat.max_completion_tokens and chat.max_tokens and chat.max_completion_tokens != chat.max_tokens:
        return refuse_field("max_tokens", "max_tokens and max_completion_tokens differ; give one of them.")
    token_ids = _encode_chat(chat.messages, served, asked or 1)
    if isinstance(token_ids, Failure):
        return token_ids
    left = max(1, served.capacity.context_tokens - len(token_ids))
    return _assemble(chat, caller, token_ids, asked or left)


def translate_completion(body: bytes, served: Served, caller: Caller) -> Translation | Failure:
    """Turn the body of /v1/completions into a request."""
    completion = read_body(body, CompletionBody)
    if isinstance(completion, Failure):
        return completion
    failure = _refuse_common(completion, served)
    if failure is not None:
        return failure
    max_tokens = completion.max_tokens or COMPLETION_TOKENS
    token_ids = _encode_prompt(completion.prompt, served, max_tokens)
    if isinstance(token_ids, Failure):
        return token_ids
    return _assemble(completion, caller, token_ids, max_tokens)


def _assemble(body: GenerationFields, caller: Caller, token_ids: Sequence[int], max_tokens: int) -> Translation:
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    request = Request(
        caller.id, caller.tenant, tuple(token_ids), max_tokens, _sampling(body), stop, deadline_s=caller.deadline_s
    )
    options = body.stream_options
    return Translation(request, bool(body.stream), bool(options and options.include_usage))


def _sampling(body: GenerationFields) -> SamplingParams:
    """A seed of the client's is used as it is; without one we draw it."""
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        seed=secrets.randbits(63) if body.seed is None else body.seed % (1 << 63),
        ignore_eos=bool(body.ignore_eos),
    )


# ---- refusing --------------------------------------------------------------------------------------------------------


def _refuse_common(body: GenerationFields, served: Served) -> Failure | None:
    if body.model != served.model:
        message = f"There is no such model here; the one that is served is {served.model}."
        return Failure(404, INVALID, message, "model_not_found", "model")
    if body.stream_options is not None and not body.stream:
        return refuse_field("stream_options", "stream_options is allowed only with stream.")
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > STOPS_MAX:
        return refuse_field("stop", f"stop has {len(stops)} strings; at most {STOPS_MAX} are allowed.")
    if any(not stop or len(stop) > STOP_CHARS_MAX for stop in stops):
        return refuse_field("stop", f"Every stop string has 1 to {STOP_CHARS_MAX} characters.")
    return None


def _refuse_messages(messages: list[ChatMessage]) -> Failure | None:
    if not messages:
        return refuse_field("messages", "messages is empty; give at least one.")
    for index, message in enumerate(messages):
        failure = _refuse_message(f"messages[{index}]", message)
        if failure is not None:
            return failure
    return None


def _refuse_message(at: str, message: ChatMessage) -> Failure | None:
    if message.tool_calls:
        return refuse_field(f"{at}.tool_calls", "Tool calls are not supported here.", "unsupported_parameter")
    if message.role not in ROLES:
        return refuse_field(f"{at}.role", f"{at}.role is one of {', '.join(ROLES)}; tools are not supported here.")
    if message.content is None:
        return refuse_field(f"{at}.content", f"{at}.content is missing.")
    if isinstance(message.content, str):
        return None
    for index, part in enumerate(message.content):
        if part.type != "text":
            where = f"{at}.content[{index}].type"
            return refuse_field(where, "Only parts of type text are supported here.", "unsupported_parameter")
        if part.text is None:
            return refuse_field(f"{at}.content[{index}].text", "A part of type text has a text.")
    return None


# ---- tokenising ------------------------------------------------------------------------------------------------------


def _encode_chat(messages: list[ChatMessage], served: Served, max_tokens: int) -> list[int] | Failure:
    texts = [_message_text(message) for message in messages]
    if not any(texts):
        return refuse_field("messages", "Every message is empty; give at least one some text.")
    too_long = _refuse_bytes("messages", texts, served, max_tokens)
    if too_long is not None:
        return too_long
    try:
        roles = ("system" if message.role == "developer" else message.role for message in messages)
        prompt = served.tokenizer.render_chat(
            [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        )
    except ValueError as refusal:
        return refuse_field("messages", f"{refusal}.")
    token_ids = served.tokenizer.encode(prompt, served.capacity.context_tokens)
    return _refuse_count("messages", token_ids, served, max_tokens)


def _message_text(message: ChatMessage) -> str:
    if isinstance(message.content, list):
        return "".join(part.text or "" for part in message.content)
    return message.content or ""


def _encode_prompt(prompt: str | list[str | int | list[int]], served: Served, max_tokens: int) -> list[int] | Failure:
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0] if isinstance(prompt[0], str) else [*prompt[0]]
    if not prompt:
        return refuse_field("prompt", "prompt is empty; give a string or a list of token ids.")
    if isinstance(prompt, list):
        return _check_token_ids(prompt, served, max_tokens)
    too_long = _refuse_bytes("prompt", [prompt], served, max_tokens)
    if too_long is not None:
        return too_long
    token_ids = served.tokenizer.encode(prompt, served.capacity.context_tokens, add_special=True)
    return _refuse_count("prompt", token_ids, served, max_tokens)


def _check_token_ids(prompt: list[str | int | list[int]], served: Served, max_tokens: int) -> list[int] | Failure:
    """Take a client's own token ids; their number is looked at before each of them is."""
    if isinstance(prompt[0], int) and len(prompt) > served.capacity.context_tokens:
        return _refuse_length("prompt", len(prompt), served, max_tokens)
    token_ids = [each for each in prompt if isinstance(each, int)]
    if len(token_ids) < len(prompt):
        return refuse_field("prompt", "Only one prompt is supported here: a string or a list of token ids.")
    if not all(0 <= each < served.tokenizer.vocab_size for each in token_ids):
        return refuse_field("prompt", f"Token ids are 0 to {served.tokenizer.vocab_size - 1} for this model.")
    return token_ids


def _refuse_bytes(param: str, texts: list[str], served: Served, max_tokens: int) -> Failure | None:
    """Refuse what is too long however it is tokenised: no token stands for more bytes than the longest."""
    num_bytes = sum(len(text.encode()) for text in texts)
    num_tokens = -(-num_bytes // served.tokenizer.longest_token_bytes)
    if num_tokens <= served.capacity.context_tokens:
        return None
    return _refuse_length(param, num_tokens, served, max_tokens)


def _refuse_count(param: str, token_ids: list[int], served: Served, max_tokens: int) -> list[int] | Failure:
    """Refuse a prompt that alone passes the context; its tokens were counted only so far."""
    if not token_ids:
        return refuse_field(param, f"{param} holds no token for this model; give some text.")
    if len(token_ids) <= served.capacity.context_tokens:
        return token_ids
    return _refuse_length(param, len(token_ids), served, max_tokens)


def _refuse_length(param: str, num_tokens: int, served: Served, max_tokens: int) -> Failure:
    sums = fits(served.capacity, num_tokens, max_tokens)
    return too_large(Need(num_tokens, max_tokens, sums, at_least=True), served.capacity.page_size, param)
