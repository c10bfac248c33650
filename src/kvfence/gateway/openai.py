"""The requests of OpenAI's API that this server takes, field by field, and what it refuses or ignores.

The OpenAPI description and ``docs/api.md`` are made of these. Not for: what a request becomes (``translate.py``), the
shapes of answers (``answers.py``) or errors (``responses.py``).
"""

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct, field

CHOICES_MAX = 16
STOPS_MAX = 4
STOP_CHARS_MAX = 256
"""Longest stop string; as many characters of an answer may have to be held back."""
STOP_IDS_MAX = 64
CACHE_SALT_CHARS_MAX = 256
BIASES_MAX = 1024
TOP_LOGPROBS_MAX = 20
TOOLS_MAX = 128


def _null() -> Raw:
    return Raw(b"null")


_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Bias = Annotated[float, Meta(ge=-100, le=100)]


_STOP = {"type": "string", "minLength": 1, "maxLength": STOP_CHARS_MAX}
_BIASES = {"maxProperties": BIASES_MAX, "propertyNames": {"pattern": "^[0-9]{1,9}$"}}


class StreamOptions(Struct, frozen=True):
    """What a stream carries besides text."""

    include_usage: Annotated[bool | None, Meta(description="one more chunk, with the token counts, before the end")] = (
        None
    )
    continuous_usage_stats: Annotated[
        bool | None, Meta(description="with include_usage: every chunk has the counts so far (as in vLLM)")
    ] = None


class JsonSchemaFormat(Struct, frozen=True):
    """A named JSON schema. It is enforced whatever ``strict`` says."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    schema: Annotated[Raw, Meta(description="the JSON schema, an object")] = field(default_factory=_null)
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(Struct, frozen=True, forbid_unknown_fields=True):
    """What the answer must be. A field that is not known here would shape it, so that none is ignored."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema: Annotated[Raw, Meta(description="of json_object: a JSON schema (as in llama.cpp)")] = field(
        default_factory=_null
    )
    value: Annotated[Raw, Meta(description="as schema (as in TGI and Hugging Face's client)")] = field(
        default_factory=_null
    )


class GenerationFields(Struct, frozen=True, kw_only=True):
    """The fields that completions and chat completions share."""

    model: Annotated[str, Meta(description="the served model's name, as in /v1/models")]
    stream: Annotated[bool | None, Meta(description="send the answer as events")] = None
    stream_options: Annotated[StreamOptions | None, Meta(description="only with stream")] = None
    n: Annotated[
        Annotated[int, Meta(ge=1, le=CHOICES_MAX)] | None,
        Meta(description="answers to one prompt, each with a seed of its own; admitted all or none"),
    ] = None
    temperature: Annotated[Annotated[float, Meta(ge=0, le=2)] | None, Meta(description="0 is greedy; 1 if absent")] = (
        None
    )
    top_p: Annotated[Annotated[float, Meta(gt=0, le=1)] | None, Meta(description="share kept of the probability")] = (
        None
    )
    top_k: Annotated[
        Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None, Meta(description="tokens kept; 0 and -1 are off (as in vLLM)")
    ] = None
    min_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="drops tokens below this share of the likeliest one's probability (as in vLLM)"),
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None,
        Meta(description="the same seed, prompt and settings give the same answer; drawn if absent"),
    ] = None
    stop: Annotated[
        str | Annotated[list[str], Meta(extra_json_schema={"maxItems": STOPS_MAX, "items": _STOP})] | None,
        Meta(description=f"up to {STOPS_MAX} strings, each of 1 to {STOP_CHARS_MAX} characters, that end the answer"),
    ] = None
    stop_token_ids: Annotated[
        Annotated[list[Annotated[int, Meta(ge=0)]], Meta(extra_json_schema={"maxItems": STOP_IDS_MAX})] | None,
        Meta(description=f"up to {STOP_IDS_MAX} tokens that end the answer and are not shown (as in vLLM)"),
    ] = None
    ignore_eos: Annotated[bool | None, Meta(description="do not end at the model's own end (as in vLLM)")] = None
    max_tokens: Annotated[_Count | None, Meta(description="the most tokens of one answer")] = None
    min_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)] | None,
        Meta(description="no end, stop token or stop string before so many tokens (as in vLLM); not with a grammar"),
    ] = None
    presence_penalty: Annotated[_Penalty | None, Meta(description="subtracted once for tokens of the answer")] = None
    frequency_penalty: Annotated[
        _Penalty | None, Meta(description="subtracted for each time a token stands in the answer")
    ] = None
    repetition_penalty: Annotated[
        Annotated[float, Meta(ge=0.01, le=10)] | None,
        Meta(description="divides the logits of tokens of prompt and answer (as in vLLM); 1 is off"),
    ] = None
    logit_bias: Annotated[
        Annotated[dict[str, _Bias], Meta(extra_json_schema=_BIASES)] | None,
        Meta(description=f"token id to what is added to its logit, -100 to 100; up to {BIASES_MAX} of them"),
    ] = None
    cache_salt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=CACHE_SALT_CHARS_MAX)] | None,
        Meta(description="within your tenant, share prompt pages only with requests of the same salt (as in vLLM)"),
    ] = None
    response_format: Annotated[
        ResponseFormat | None, Meta(description="text, json_object, or a json_schema that is enforced token by token")
    ] = None


class CompletionBody(GenerationFields, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: Annotated[
        str | list[str | int | list[int]],
        Meta(description="one prompt: a string, a list of one string, token ids, or a list of one such list"),
    ]
    logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=TOP_LOGPROBS_MAX)] | None,
        Meta(description="log probabilities of each token and of so many likeliest in its place"),
    ] = None


ROLES = ("system", "developer", "user", "assistant", "tool")


class ContentPart(Struct, frozen=True):
    """One part of a message; only ``text`` parts are served."""

    type: Annotated[str, Meta(extra_json_schema={"enum": ["text"]})]
    text: str | None = None


class CalledFunction(Struct, frozen=True):
    """What an earlier answer called. ``arguments``: JSON text of an object."""

    name: str
    arguments: str


class ToolCall(Struct, frozen=True):
    """One call of an earlier answer."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"


class ChatMessage(Struct, frozen=True):
    """One message."""

    role: Annotated[str, Meta(extra_json_schema={"enum": list(ROLES)})]
    content: Annotated[str | list[ContentPart] | None, Meta(description="text, or parts of type text")] = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall] | None, Meta(description="of an assistant's message")] = None
    tool_call_id: Annotated[str | None, Meta(description="of a tool's message")] = None


class FunctionSpec(Struct, frozen=True):
    """A function that may be called. ``parameters``: the JSON schema of its arguments, an object."""

    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: Raw = field(default_factory=_null)
    strict: bool | None = None


class Tool(Struct, frozen=True):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionSpec


class NamedFunction(Struct, frozen=True):
    """The name of a function."""

    name: str


class NamedTool(Struct, frozen=True):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class ChatBody(GenerationFields, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[
        list[ChatMessage],
        Meta(description="the conversation; the answer follows it", extra_json_schema={"minItems": 1}),
    ]
    max_completion_tokens: Annotated[_Count | None, Meta(description="another name of max_tokens")] = None
    logprobs: Annotated[bool | None, Meta(description="report the log probability of each token")] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=TOP_LOGPROBS_MAX)] | None,
        Meta(description="with logprobs: so many likeliest tokens in each place"),
    ] = None
    tools: Annotated[
        Annotated[list[Tool], Meta(extra_json_schema={"maxItems": TOOLS_MAX})] | None,
        Meta(description=f"up to {TOOLS_MAX} functions the model may call"),
    ] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedTool | None,
        Meta(description="auto if absent; required and a named function are enforced token by token"),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="false: at most one call in an answer; enforced where calls are required")
    ] = None


UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "prompt_logprobs": (),
    "top_logprobs": (0,),
    "messages": (),
    "prompt": (),
    "max_completion_tokens": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "web_search_options": (),
    "moderation": (),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "logits_processors": ([],),
    "return_tokens_as_token_ids": (False,),
}
"""Fields that would change the answer and are not served on a route that has them not, with the values (besides null)
that ask for nothing. Each is refused by name.
"""

IGNORED: dict[str, str] = {
    "user": "the key says whose request it is",
    "safety_identifier": "as user",
    "metadata": "nothing is stored",
    "store": "nothing is stored",
    "service_tier": "there is one",
    "prompt_cache_key": "what a tenant's prompts share does not depend on it",
    "prompt_cache_retention": "as prompt_cache_key",
    "strict": "of json_schema and functions: a schema is enforced either way",
}
"""Fields that do not change the text, and why nothing is done with them; so are all that are in no table here."""
