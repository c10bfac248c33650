"""Text Generation Inference: the launcher's arguments, the router's token budget, ``/info``."""

import re
from collections.abc import Iterable, Iterator, Mapping

from kvfence.evidence.arguments import Argument, pairs, stated
from kvfence.evidence.forms import plain, reading
from kvfence.evidence.readings import Form, Found, Line, Notebook

ENGINE = "tgi"

ARGUMENTS: dict[str, Argument] = {
    "model_id": Argument("model"),
    "max_total_tokens": Argument("context_len", "int"),
    "max_input_tokens": Argument("effective_input_limit", "int"),
    "max_input_length": Argument("effective_input_limit", "int"),
    "max_batch_total_tokens": Argument("pool_tokens", "int", 4),
    "quantize": Argument("quantisation"),
    "dtype": Argument("dtype"),
    "kv_cache_dtype": Argument("kv_dtype"),
    "num_shard": Argument("tp_size", "int"),
    "cuda_memory_fraction": Argument("memory_fraction", "float"),
    "version": Argument("version"),
    "api_key": Argument("api_key_set", "set"),
}


def read_arguments(arguments: Mapping[str, object]) -> Iterator[Found]:
    """Facts that the launcher's arguments, or ``GET /info``, state."""
    for found in stated(arguments, ARGUMENTS):
        if not str(found.value).startswith("<"):
            yield found


def _read_args(match: re.Match[str], _line: Line) -> Iterable[Found]:
    yield from read_arguments(dict(pairs(match.string, match.end() - 1)))


FORMS: tuple[Form, ...] = (
    plain(ENGINE, "Default `max_total_tokens` to ", r"Default `max_total_tokens` to (?P<context_len>{N})(?=\s|$)"),
    plain(
        ENGINE, "Maximum total tokens defaulted to ", r"Maximum total tokens defaulted to (?P<context_len>{N})(?=\s|$)"
    ),
    plain(
        ENGINE,
        "Default `max_input_tokens` to ",
        r"Default `max_input_tokens` to (?P<effective_input_limit>{N})(?=\s|$)",
    ),
    plain(
        ENGINE,
        "Maximum input tokens defaulted to ",
        r"Maximum input tokens defaulted to (?P<effective_input_limit>{N})(?=\s|$)",
    ),
    plain(ENGINE, "`max_new_tokens` must be <= ", r"`max_new_tokens` must be <= (?P<context_len>{N})\."),
    reading(ENGINE, "Args {", r"\bArgs \{", _read_args),
    plain(
        ENGINE,
        "max batch total tokens to ",
        r"Setting max batch total tokens to (?P<pool_tokens>{N})(?=\s|$)",
        weight=8,
    ),
    plain(
        ENGINE,
        "default value for `--max-total-tokens`",
        r"default value for `--max-total-tokens`[^\d]{0,40}(?P<context_len>{N})",
        weight=4,
    ),
    plain(
        ENGINE,
        "Inferred max batch total tokens",
        r"Inferred max batch total tokens: (?P<pool_tokens>{N})(?=\s|$)",
        weight=7,
    ),
)


def derive(book: Notebook) -> None:
    """Nothing follows from what TGI prints."""
    del book
