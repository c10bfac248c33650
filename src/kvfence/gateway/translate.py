"""A request body in OpenAI's shape becomes a core Request, or the Failure the client gets.

Bounded first, tokenised after: what its bytes alone prove too long is never tokenised, and tokenising stops one token
above the context. No failure repeats anything the client sent.
Not for: whether a request fits or may queue now (the dispatcher asks), or who the client is (``registry.py``).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.ids import RequestId, TenantId
from kvfence.core.request import Request, SamplingParams
from kvfence.gateway.bodies import read_body
from kvfence.gateway.messages import refuse_messages, template_messages
from kvfence.gateway.openai import ChatBody, CompletionBody, GenerationFields
from kvfence.gateway.responses import INVALID, Failure, Need, refuse_field, too_large
from kvfence.gateway.steering import refuse_settings, sampling_of
from kvfence.gateway.tool_calls import Calls, plan_calls, template_tools
from kvfence.models.tool_formats import ToolFormat
from kvfence.protocol.admission import Capacity, fits

COMPLETION_TOKENS = 16
"""Tokens of a completion that does not say how many: OpenAI's default."""


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

    @property
    def takes_tools(self) -> bool:
        """Does the chat template show tools to the model?"""
        ...

    @property
    def tool_format(self) -> ToolFormat | None:
        """How this model writes calls, where that is known."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Give the bytes that one token stands for."""
        ...

    def render_chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Give the prompt of a chat; a ValueError, without the messages' text, where it cannot."""
        ...

    def detokenizer(self, context: Sequence[int] = (), shown: Sequence[str] = ()) -> TextStream:
        """Begin to turn generated ids into text; ``shown``: special tokens whose names are text."""
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


class Prompted(Struct, frozen=True):
    """A prompt as tokens, and how its answer is to be generated."""

    token_ids: Sequence[int]
    max_tokens: int
    sampling: SamplingParams


class Translation(Struct, frozen=True):
    """A request the workers understand, and how its answer is to be given.

    ``calls``: how calls are read out of the answer; None where nothing may be called.
    """

    request: Request
    stream: bool = False
    with_usage: bool = False
    usage_always: bool = False
    num_choices: int = 1
    calls: Calls | None = None

    @property
    def requests(self) -> tuple[Request, ...]:
        """One request for each choice; the first is the request itself."""
        return tuple(_choice(self.request, index) for index in range(self.num_choices))


def _choice(request: Request, index: int) -> Request:
    """Give the request of one of several choices, with an id and a seed that come of the first one's."""
    if index == 0:
        return request
    digest = hashlib.blake2b(f"{request.sampling.seed}/choice/{index}".encode(), digest_size=8).digest()
    sampling = replace(request.sampling, seed=int.from_bytes(digest, "little") >> 1)
    return replace(request, id=RequestId(f"{request.id}-{index}"), sampling=sampling)


def translate_chat(body: bytes, served: Served, caller: Caller) -> Translation | Failure:
    """Turn the body of /v1/chat/completions into a request."""
    chat = read_body(body, ChatBody)
    if isinstance(chat, Failure):
        return chat
    failure = _refuse_common(chat, served) or _refuse_chat(chat)
    if failure is not None:
        return failure
    calls = plan_calls(chat, served.tokenizer.takes_tools, served.tokenizer.tool_format)
    if isinstance(calls, Failure):
        return calls
    num_top = (chat.top_logprobs or 0) if chat.logprobs else None
    sampling = sampling_of(chat, num_top, calls.grammar if calls else "")
    if isinstance(sampling, Failure):
        return sampling
    asked = chat.max_completion_tokens or chat.max_tokens
    token_ids = _encode_chat(chat, served, asked or 1, with_tools=calls is not None)
    if isinstance(token_ids, Failure):
        return token_ids
    left = max(1, served.capacity.context_tokens - len(token_ids))
    return _assemble(chat, caller, Prompted(token_ids, asked or left, sampling), calls)


def translate_completion(body: bytes, served: Served, caller: Caller) -> Translation | Failure:
    """Turn the body of /v1/completions into a request."""
    completion = read_body(body, CompletionBody)
    if isinstance(completion, Failure):
        return completion
    failure = _refuse_common(completion, served)
    if failure is not None:
        return failure
    sampling = sampling_of(completion, completion.logprobs)
    if isinstance(sampling, Failure):
        return sampling
    max_tokens = completion.max_tokens or COMPLETION_TOKENS
    token_ids = _encode_prompt(completion.prompt, served, max_tokens)
    if isinstance(token_ids, Failure):
        return token_ids
    return _assemble(completion, caller, Prompted(token_ids, max_tokens, sampling))


def _assemble(body: GenerationFields, caller: Caller, prompted: Prompted, calls: Calls | None = None) -> Translation:
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    request = Request(
        caller.id,
        caller.tenant,
        tuple(prompted.token_ids),
        prompted.max_tokens,
        prompted.sampling,
        stop,
        deadline_s=caller.deadline_s,
        cache_salt=body.cache_salt or "",
    )
    options = body.stream_options
    with_usage = bool(options and options.include_usage)
    always = bool(options and options.continuous_usage_stats)
    return Translation(request, bool(body.stream), with_usage, with_usage and always, body.n or 1, calls)


# ---- refusing --------------------------------------------------------------------------------------------------------


def _refuse_common(body: GenerationFields, served: Served) -> Failure | None:
    if body.model != served.model:
        message = f"There is no such model here; the one that is served is {served.model}."
        return Failure(404, INVALID, message, "model_not_found", "model")
    if body.stream_options is not None and not body.stream:
        return refuse_field("stream_options", "stream_options is allowed only with stream.")
    return refuse_settings(body, served.tokenizer.vocab_size)


def _refuse_chat(chat: ChatBody) -> Failure | None:
    if chat.max_completion_tokens and chat.max_tokens and chat.max_completion_tokens != chat.max_tokens:
        return refuse_field("max_tokens", "max_tokens and max_completion_tokens differ; give one of them.")
    if chat.top_logprobs and not chat.logprobs:
        return refuse_field("top_logprobs", "top_logprobs is allowed only with logprobs.")
    return refuse_messages(chat.messages)


# ---- tokenising ------------------------------------------------------------------------------------------------------


def _encode_chat(chat: ChatBody, served: Served, max_tokens: int, *, with_tools: bool) -> list[int] | Failure:
    messages = template_messages(chat.messages)
    if isinstance(messages, Failure):
        return messages
    tools = template_tools(chat.tools or []) if with_tools else []
    texts = [str(message["content"]) for message in messages]
    if not any(texts):
        return refuse_field("messages", "Every message is empty; give at least one some text.")
    too_long = _refuse_bytes("messages", texts, served, max_tokens)
    if too_long is not None:
        return too_long
    try:
        prompt = served.tokenizer.render_chat(messages, tools)
    except ValueError as refusal:
        return refuse_field("messages", f"{refusal}.")
    token_ids = served.tokenizer.encode(prompt, served.capacity.context_tokens)
    return _refuse_count("messages", token_ids, served, max_tokens)


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
