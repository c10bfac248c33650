"""Launch commands and environments: what a command line asks for, in any script, log or manifest.

A value from a variable (``$CTX``) is not a value. What a full command leaves out has the engine's documented default,
and is marked so. Not for: YAML around a command (``manifests.py``).
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from kvfence.evidence import llama_cpp, lmdeploy, sglang, tensorrt_llm, tgi, vllm
from kvfence.evidence.arguments import as_kind
from kvfence.evidence.forms import reading
from kvfence.evidence.readings import Form, Found, Line, Place

COMMAND_CHARS_MAX = 60_000
COMMAND_PROCESS = "command at line "
_LEFT_OPEN = re.compile(
    r"\$|\{\{|\.\.\.|…|<[A-Za-z][\w -]{0,60}>|(?<!\S)\[[^\]\d]{1,60}\](?!\S)|(?<!\S)\*?\{[A-Za-z_]\w*\}(?!\S)"
)
"""A variable, a template's place or an ellipsis: more arguments may stand where it is."""

_LAUNCHERS: tuple[tuple[str, str], ...] = (
    (sglang.ENGINE, r"sglang\.launch_server\b|\bsglang serve\b|dynamo\.sglang\b"),
    (vllm.ENGINE, r"\bvllm serve\b|vllm\.entrypoints\.[\w.]+|dynamo\.vllm\b"),
    (tensorrt_llm.ENGINE, r"\btrtllm-serve\b|dynamo\.trtllm\b"),
    (llama_cpp.ENGINE, r"\bllama-server\b"),
    (tgi.ENGINE, r"\btext-generation-launcher\b"),
    (lmdeploy.ENGINE, r"\blmdeploy serve api_server\b"),
)
_READERS = {
    sglang.ENGINE: sglang.read_arguments, vllm.ENGINE: vllm.read_arguments, tgi.ENGINE: tgi.read_arguments,
    tensorrt_llm.ENGINE: tensorrt_llm.read_arguments, llama_cpp.ENGINE: llama_cpp.read_arguments,
    lmdeploy.ENGINE: lmdeploy.read_arguments,
}  # fmt: skip
_ALIASES: dict[str, dict[str, str]] = {
    sglang.ENGINE: {
        "tp": "tp_size", "tensor_parallel_size": "tp_size", "dp": "dp_size", "data_parallel_size": "dp_size",
        "pp": "pp_size", "pipeline_parallel_size": "pp_size", "model": "model_path", "dcp": "dcp_size",
        "decode_context_parallel_size": "dcp_size",
    },
    vllm.ENGINE: {
        "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size", "q": "quantization",
        "dcp": "decode_context_parallel_size",
    },
    tensorrt_llm.ENGINE: {},
    llama_cpp.ENGINE: {"c": "ctx_size", "np": "parallel", "m": "model", "ctk": "cache_type_k", "kvu": "kv_unified"},
    tgi.ENGINE: {},
    lmdeploy.ENGINE: {},
}  # fmt: skip
_FLAGS_OF = {
    "context_length": sglang.ENGINE, "mem_fraction_static": sglang.ENGINE, "disaggregation_mode": sglang.ENGINE,
    "disaggregation_transfer_backend": sglang.ENGINE, "kv_canary": sglang.ENGINE, "kv_canary_real_data": sglang.ENGINE,
    "disaggregation_enable_kv_checksum": sglang.ENGINE, "allow_auto_truncate": sglang.ENGINE,
    "max_model_len": vllm.ENGINE, "kv_transfer_config": vllm.ENGINE, "gpu_memory_utilization": vllm.ENGINE,
    "ctx_size": llama_cpp.ENGINE, "max_batch_total_tokens": tgi.ENGINE, "session_len": lmdeploy.ENGINE,
}  # fmt: skip

ENVIRONMENT: dict[str, tuple[str, str, str]] = {
    "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": (sglang.ENGINE, "deferred_release", "flag"),
    "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT": (sglang.ENGINE, "release_timeout_s", "float"),
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": (sglang.ENGINE, "waiting_timeout_s", "float"),
    "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES": (sglang.ENGINE, "batch_indices_max", "int"),
    "MC_TRANSFER_TIMEOUT": ("", "transfer_timeout_s", "float"),
    "VLLM_API_KEY": (vllm.ENGINE, "api_key_set", "set"),
    "MAX_TOTAL_TOKENS": (tgi.ENGINE, "context_len", "int"),
    "MAX_BATCH_TOTAL_TOKENS": (tgi.ENGINE, "pool_tokens", "int"),
    "MAX_INPUT_TOKENS": (tgi.ENGINE, "effective_input_limit", "int"),
    "LLAMA_ARG_CTX_SIZE": (llama_cpp.ENGINE, "total_context", "int"),
    "LLAMA_ARG_N_PARALLEL": (llama_cpp.ENGINE, "slots", "int"),
}
_LOG_ENVIRONMENT = tuple(name for name in ENVIRONMENT if name.startswith(("SGLANG_", "MC_", "LLAMA_ARG")))


class Command(Struct, frozen=True):
    """One process's command line and environment, as far as they are written down.

    Holds:
        engine: "" where the words name no engine.
        is_whole: the command names its launcher and nothing in it is left open (a variable, a template, an ellipsis).
    """

    engine: str
    arguments: dict[str, object]
    environment: dict[str, str]
    is_whole: bool


def engine_of(words: str) -> str:
    """The engine that a command line launches, or ""."""
    for engine, pattern in _LAUNCHERS:
        if re.search(pattern, words):
            return engine
    return ""


def parse_command(text: str, environment: Mapping[str, str] | None = None) -> Command:
    """A command as written in a shell: its flags by name, and the variables set before it."""
    return parse_words(_words(text[:COMMAND_CHARS_MAX]), environment)


def parse_words(words: Sequence[str], environment: Mapping[str, str] | None = None) -> Command:
    """A command as a list of words; an element may be a whole script (``sh -c "..."``)."""
    flat: list[str] = []
    for word in words:
        flat += _words(word) if (" " in word or "\n" in word) and engine_of(word) else [word]
    variables = dict(environment or {})
    text = " ".join(flat)
    engine = engine_of(text)
    start = _start(flat)
    for word in flat[: start if engine else 0]:
        name, _, value = word.partition("=")
        if value and re.fullmatch(r"[A-Za-z_]\w*", name):
            variables[name] = value
    arguments = flags(flat[start:], _ALIASES.get(engine, {}))
    if engine == vllm.ENGINE and start < len(flat) and not flat[start].startswith("-"):
        arguments.setdefault("model_tag", flat[start])
    engine = engine or next((_FLAGS_OF[name] for name in arguments if name in _FLAGS_OF), "")
    is_whole = (
        bool(engine_of(text)) and not _LEFT_OPEN.search(text) and not {"config", "config_file"} & arguments.keys()
    )
    return Command(engine, arguments, variables, is_whole)


def _start(words: Sequence[str]) -> int:
    """Where the launcher's own arguments begin."""
    for at, word in enumerate(words):
        if engine_of(word) or engine_of(" ".join(words[at : at + 2])) or engine_of(" ".join(words[at : at + 3])):
            while at < len(words) and not words[at].startswith("-") and engine_of(" ".join(words[at:])):
                at += 1
            if at < len(words) and words[at] in ("serve", "api_server"):
                at += 1
            return at
    return 0


def _words(text: str) -> list[str]:
    text = text.replace("\\\r\n", " ").replace("\\\n", " ")
    try:
        return shlex.split(text, comments=False)
    except ValueError:
        return [word.strip("'\"") for word in text.split()]


def flags(words: Sequence[str], aliases: Mapping[str, str]) -> dict[str, object]:
    """``--a-b 1 --c --no-d --e=x --f.g y`` as names and values; a flag without a value is True."""
    found: dict[str, object] = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word in ("&&", "||", ";", "|", "&"):
            break
        match = re.fullmatch(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", word, re.DOTALL)
        if not match:
            continue
        name, value = match[1].replace("-", "_"), match[2]
        if value is None and at < len(words) and not re.match(r"--?[A-Za-z]|[;&|]", words[at]):
            value, at = words[at], at + 1
        _put(found, aliases.get(name, name), value)
    return found


def _put(found: dict[str, object], name: str, value: str | None) -> None:
    if value is None and name.startswith("no_"):
        found[name[3:]] = False
    elif "." in name:
        outer, _, inner = name.partition(".")
        group = found.setdefault(outer, {})
        if isinstance(group, dict):
            group[inner] = value
    else:
        found[name] = True if value is None else value


def read_command(command: Command) -> Iterator[Found]:
    """Facts that a command line and its environment state."""
    reader = _READERS.get(command.engine)
    if reader is not None:
        yield from reader(_typed(command.arguments))
    for name, value in command.environment.items():
        yield from read_variable(name, value)
    if command.is_whole:
        yield from _defaults(command)


def _typed(arguments: Mapping[str, object]) -> dict[str, object]:
    """Numbers as numbers: a command line has only words."""
    typed: dict[str, object] = {}
    for name, value in arguments.items():
        if isinstance(value, str):
            number = re.fullmatch(r"(\d{1,12})([kKmM]?)", value)
            if number and number[2]:
                value = int(number[1]) * {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20}[number[2]]
            elif number:
                value = int(number[1])
        typed[name] = value
    return typed


def read_variable(name: str, value: str) -> Iterator[Found]:
    """What one environment variable states."""
    known = ENVIRONMENT.get(name)
    if known is not None and "$" not in value:
        found = as_kind(value, known[2])
        if found is not None:
            yield Found(known[1], found, 6)


def _defaults(command: Command) -> Iterator[Found]:
    if command.engine == sglang.ENGINE and "disaggregation_mode" not in command.arguments:
        yield Found("role", "single", 2, "sglang: --disaggregation-mode null")
    if command.engine == vllm.ENGINE and "kv_transfer_config" not in command.arguments:
        yield Found("role", "single", 2, "vllm: no --kv-transfer-config")


def _read_launch(match: re.Match[str], line: Line) -> Iterable[Found]:
    if line.continued:
        return
    parts = [line.text]
    for following in line.rest(60):
        if not parts[-1].rstrip().endswith("\\"):
            break
        parts.append(following)
    text = "\n".join(part.rstrip() for part in parts)
    command = parse_command(text[_command_start(text, match.start()) :])
    if not command.arguments:
        return
    line.text = text
    line.place = Place(f"{COMMAND_PROCESS}{line.number}", line.place.dp_rank)
    yield Found("command_engine", command.engine)
    yield from read_command(command)


def _command_start(text: str, launcher: int) -> int:
    """Back from the launcher over the words of its own command, to the last separator."""
    before = max(text.rfind(mark, 0, launcher) for mark in ("; ", "&& ", "$ ", "+ ", "`", '"', ": "))
    return before + 1 if before >= 0 else 0


def _read_flag(match: re.Match[str], line: Line) -> Iterable[Found]:
    if line.continued or engine_of(line.text):
        return
    command = parse_command(line.text[match.start() :])
    yield from read_command(command)


def _read_environment(match: re.Match[str], _line: Line) -> Iterable[Found]:
    yield from read_variable(match["name"], match["value"])


_LAUNCH_ANCHORS = (
    "sglang.launch_server", "sglang serve", "dynamo.sglang", "vllm serve", "vllm.entrypoints", "dynamo.vllm",
    "trtllm-serve", "dynamo.trtllm", "llama-server", "text-generation-launcher", "lmdeploy serve",
)  # fmt: skip
_FLAG_ANCHORS = tuple("--" + name.replace("_", "-") for name in _FLAGS_OF)

_LOG_NAMES = "|".join(sorted(_LOG_ENVIRONMENT, key=len, reverse=True))
_ASSIGNED = r"\\?['\"]?\s?[=:]\s?\\?['\"]?(?P<value>[\w.]{1,40})(?![\w.$])"

FORMS: tuple[Form, ...] = (
    reading("", _LAUNCH_ANCHORS, "|".join(pattern for _, pattern in _LAUNCHERS), _read_launch),
    reading("", _FLAG_ANCHORS, rf"(?<![\w`(-])(?:{'|'.join(_FLAG_ANCHORS)})(?=[ =]\S|\s*$)", _read_flag),
    reading("", _LOG_ENVIRONMENT, rf"(?P<name>{_LOG_NAMES}){_ASSIGNED}", _read_environment),
)


def split(text: str) -> list[str]:
    """A command written as one text, as words."""
    return _words(text)


def quoted(word: str) -> str:
    """A word as a shell would need it."""
    return shlex.quote(word)


def launcher(engine: str) -> str:
    """The words that launch an engine whose image starts it by itself."""
    return {
        sglang.ENGINE: "python -m sglang.launch_server",
        vllm.ENGINE: "vllm serve",
        tgi.ENGINE: "text-generation-launcher",
        llama_cpp.ENGINE: "llama-server",
        tensorrt_llm.ENGINE: "trtllm-serve",
        lmdeploy.ENGINE: "lmdeploy serve api_server",
    }.get(engine, engine)


def shown(command: Command, words: Sequence[str]) -> str:
    """A command as it is quoted: its words, then the variables that we know."""
    known = [f"{name}={value}" for name, value in command.environment.items() if name in ENVIRONMENT]
    return " ".join([*words, *known])
