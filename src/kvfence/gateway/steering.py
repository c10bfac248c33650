"""What a body asks of sampling: checked as a whole, and turned into ``SamplingParams``.

Not for: single values (``openai.py`` bounds them) or calls (``tool_calls.py``).
"""

import re
import secrets

from kvfence.core.request import SamplingParams
from kvfence.gateway.openai import (
    BIASES_MAX,
    STOP_CHARS_MAX,
    STOP_IDS_MAX,
    STOPS_MAX,
    GenerationFields,
    ResponseFormat,
)
from kvfence.gateway.responses import Failure, refuse_field
from kvfence.models.grammar import GrammarRefused, grammar_of_schema

_TOKEN_ID = re.compile(r"[0-9]{1,9}")
ANY_OBJECT = b'{"type":"object"}'
_NULL = b"null"


def refuse_settings(body: GenerationFields, vocab_size: int) -> Failure | None:
    """Name a setting that is wrong as a whole."""
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > STOPS_MAX:
        return refuse_field("stop", f"stop has {len(stops)} strings; at most {STOPS_MAX} are allowed.")
    if any(not stop or len(stop) > STOP_CHARS_MAX for stop in stops):
        return refuse_field("stop", f"Every stop string has 1 to {STOP_CHARS_MAX} characters.")
    return _refuse_token_ids(body, vocab_size)


def _refuse_token_ids(body: GenerationFields, vocab_size: int) -> Failure | None:
    ids, biases = body.stop_token_ids or [], body.logit_bias or {}
    if len(ids) > STOP_IDS_MAX:
        return refuse_field("stop_token_ids", f"At most {STOP_IDS_MAX} stop_token_ids are allowed.")
    if len(biases) > BIASES_MAX:
        return refuse_field("logit_bias", f"At most {BIASES_MAX} entries of logit_bias are allowed.")
    if not all(each < vocab_size for each in ids):
        return refuse_field("stop_token_ids", f"Token ids are 0 to {vocab_size - 1} for this model.")
    if not all(_TOKEN_ID.fullmatch(key) and int(key) < vocab_size for key in biases):
        return refuse_field("logit_bias", f"Keys of logit_bias are token ids, 0 to {vocab_size - 1} for this model.")
    return None


def sampling_of(body: GenerationFields, num_top: int | None, calls_grammar: str = "") -> SamplingParams | Failure:
    """Give what the workers need. A seed of the client's is used as it is; without one we draw it.

    ``num_top``: likeliest tokens to report, None for no log probabilities; ``calls_grammar``: what forced calls match.
    """
    grammar = _grammar_of(body.response_format) if body.response_format is not None else ""
    if isinstance(grammar, Failure):
        return grammar
    if grammar and calls_grammar:
        return refuse_field("tool_choice", "tool_choice forces a call, so that response_format has nothing to shape.")
    grammar = grammar or calls_grammar
    if grammar and body.min_tokens:
        return refuse_field("min_tokens", "min_tokens cannot be kept where a grammar says when the answer ends.")
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        seed=secrets.randbits(63) if body.seed is None else body.seed % (1 << 63),
        ignore_eos=bool(body.ignore_eos),
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        min_tokens=body.min_tokens or 0,
        stop_token_ids=tuple(sorted(set(body.stop_token_ids or ()))),
        logit_bias=tuple((int(key), value) for key, value in (body.logit_bias or {}).items()),
        logprobs=num_top,
        grammar=grammar,
    )


def _grammar_of(form: ResponseFormat) -> str | Failure:
    if form.type == "text":
        return ""
    where, schema = "response_format", ANY_OBJECT
    if form.type == "json_schema":
        if form.json_schema is None:
            return refuse_field(f"{where}.json_schema", f"{where}.json_schema is missing.")
        where, schema = f"{where}.json_schema.schema", bytes(form.json_schema.schema)
        if schema == _NULL:
            return refuse_field(where, f"{where} is missing.")
    for name in ("schema", "value"):
        given = bytes(getattr(form, name))
        if given != _NULL:
            if form.type != "json_object" or schema != ANY_OBJECT:
                return refuse_field(f"response_format.{name}", "Give one schema: in json_schema, or with json_object.")
            where, schema = f"response_format.{name}", given
    try:
        return grammar_of_schema(schema)
    except GrammarRefused as refusal:
        return refuse_field(where, f"This schema cannot be enforced: {refusal}.", "invalid_json_schema")
