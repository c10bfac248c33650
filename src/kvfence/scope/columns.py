"""Which field of a log stands for which column: by its name, as a person would read it, or by ``--map``.

A name is compared without case, punctuation and camel case; a nested field by the end of its path, never below what a
client may fill in itself. Not for: values (``values.py``), formats without fields (``formats.py``).
"""

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from kvfence.core.errors import SettingsError

KINDS = {
    "request_id": "text",
    "started": "time",
    "ended": "time",
    "first_token": "time",
    "account": "text",
    "model": "text",
    "replica": "text",
    "worker": "text",
    "prompt_tokens": "count",
    "completion_tokens": "count",
    "status": "status",
    "ttft_ms": "span",
    "duration_ms": "span",
    "body_bytes": "count",
    "release": "text",
    "body_encoding": "text",
}
"""Columns that are looked for, and what a value of each is.

ended, first_token and body_encoding only serve to work out others: a packed body's size tells no length.
"""

_NAMES_TEXT = {
    "request_id": "request_id req_id rid requestid call_id response_id correlation_id span_id id",
    "started": "started started_at start_time starttime start_time_unix_nano start_timestamp request_start_time "
    "request_received_ts received_at request_time_iso time_local time_iso8601 timestamp created_at created datetime "
    "event_time eventtime ts time date",
    "ended": "ended ended_at end_time endtime end_time_unix_nano finished_at finished completed_at",
    "first_token": "first_token_at first_token_time completion_start_time completionstarttime",
    "account": "account account_id accountid tenant tenant_id customer customer_id organization organization_id org "
    "org_id team_id project_id workspace_id user_id userid enduser_id end_user user client_id remote_user api_key_hash "
    "api_key_alias key_alias api_key",
    "model": "model model_name model_id request_model response_model served_model model_group",
    "replica": "replica replica_id deployment deployment_id pair upstream_cluster cluster service_instance_id "
    "instance_id instance pod pod_name node host hostname host_name upstream_host upstream_addr backend api_base "
    "server",
    "worker": "decode_worker decode_worker_id decode_url decode_addr decode_host decode_instance worker worker_id",
    "prompt_tokens": "prompt_tokens num_prompt_tokens prompt_token_count input_tokens input_token_count "
    "num_input_tokens n_prompt_tokens tokens_in token_count_prompt prompt_len prompt_length",
    "completion_tokens": "completion_tokens num_completion_tokens completion_token_count output_tokens "
    "output_token_count num_output_tokens num_generation_tokens generated_tokens tokens_out token_count_completion",
    "status": "response_status_code status_code http_status response_code status code",
    "ttft_ms": "ttft_ms time_to_first_token_ms first_token_ms ttft_s ttft_seconds ttft time_to_first_token "
    "first_token_latency upstream_header_time",
    "duration_ms": "duration_ms latency_ms elapsed_ms response_ms response_time_ms total_time_ms duration_s "
    "duration_seconds latency_s e2e_latency request_time duration latency elapsed response_time upstream_response_time",
    "body_bytes": "body_bytes request_body_bytes request_bytes request_length bytes_received request_size "
    "request_body_size content_length body_size",
    "release": "release engine_version sglang_version engine_release",
    "body_encoding": "content_encoding request_content_encoding req_content_encoding body_encoding",
}
_NAMES = {column: text.split() for column, text in _NAMES_TEXT.items()}
_OF_RESPONSE = ("resp", "sent_http", "upstream_http")
_TOP_LEVEL_ONLY = frozenset({"id", "code", "time", "date", "user", "host", "server"})

_CLIENTS_OWN = frozenset(
    {
        "metadata",
        "extra_body",
        "messages",
        "request_body",
        "body",
        "prompt",
        "text",
        "content",
        "tools",
        "tags",
        "inputs",
    }
)
"""Below these a client or its text decides what stands there: no field of theirs is taken by its name."""

UNSEEN = "--map, and no line looked at has it"
"""How a field is called that ``--map`` names and that a log was not seen to have."""

_PREFIX = re.compile(
    r"^(?:(?:sent_http|upstream_http|http|resp_header|req_header|header)_)?(?:x_)?(?:llm_)?(?:usage_)?"
)
_JOINED = re.compile(r"_(?:\d|x|y)$")
"""What programs put behind the second column of one name when they join tables: such a field comes after the others."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PUNCTUATION = re.compile(r"[^a-z0-9]+")
_SECONDS = re.compile(r"(?:_s|_seconds|_sec)$|^(?:e2e_latency|request_time|upstream_\w+_time)$")
_MILLIS = re.compile(r"_ms$|_millis$|^response_ms$")
PATH_FIELDS_MAX = 1_000


class Field(Struct, frozen=True):
    """A field of a source: its path, and whole some values seen in it."""

    path: tuple[str, ...]
    samples: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """Give the path as ``--map`` takes it."""
        return ".".join(self.path)


class Pick(Struct, frozen=True):
    """A field chosen for a column. scale: what its numbers are multiplied with; how: shown to the person."""

    column: str
    path: tuple[str, ...]
    how: str
    scale: float = 1.0

    @property
    def shown(self) -> str:
        """Give the path as ``--map`` takes it."""
        return ".".join(self.path)


def plain_name(name: str) -> str:
    """Give a name in lower case with single underscores: ``startTime`` and ``X-Prompt-Tokens`` alike."""
    return _PUNCTUATION.sub("_", _CAMEL.sub("_", name).lower()).strip("_")


def parse_maps(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Read ``--map column=field`` options.

    Raises:
        SettingsError: a column that does not exist, or no field.
    """
    found: dict[str, tuple[str, ...]] = {}
    problems = []
    for text in texts:
        column, _, field = text.partition("=")
        if column not in KINDS or not field:
            problems.append(f"--map {text}: write COLUMN=FIELD with one of {', '.join(KINDS)}")
        else:
            found[column] = tuple(field.split("."))
    if problems:
        raise SettingsError(problems)
    return found


def pick(fields: Iterable[Field], maps: Mapping[str, tuple[str, ...]]) -> list[Pick]:
    """Choose the fields of each column, the best first; a column may have several in a log of mixed lines."""
    known = list(fields)[:PATH_FIELDS_MAX]
    found: list[Pick] = []
    for column, kind in KINDS.items():
        if column in maps:
            field = _mapped(known, maps[column])
            how = "--map" if field in known else UNSEEN
            found.append(Pick(column, field.path, how, _scale(kind, field)[0]))
            continue
        ranked = sorted(
            (rank, field) for field in known if (rank := _rank(column, field)) is not None and _believed(kind, field)
        )
        for _, field in ranked:
            scale, said = _scale(kind, field)
            found.append(Pick(column, field.path, "name" + said, scale))
    return _without_twice(found)


def _mapped(fields: list[Field], path: tuple[str, ...]) -> Field:
    """Give the field that ``--map`` names: as a path, or as one name with dots in it."""
    flat = ".".join(path)
    return next((field for field in fields if field.shown == flat), Field(path))


def _rank(column: str, field: Field) -> tuple[int, int] | None:
    """Give how well a field's name fits a column: the place of the name, then the depth; None where it does not."""
    if any(plain_name(segment) in _CLIENTS_OWN for segment in field.path[:-1]):
        return None
    segments = [plain_name(part) for segment in field.path for part in segment.split(".")]
    if column == "body_encoding" and any(segment.startswith(_OF_RESPONSE) for segment in segments):
        return None
    tails = {"_".join(segments[start:]) for start in range(len(segments))}
    tails |= {_PREFIX.sub("", tail) for tail in tails}
    joined = {_JOINED.sub("", tail) for tail in tails} - tails
    for behind, found in enumerate((tails, joined)):
        for place, name in enumerate(_NAMES[column]):
            if name in found and (len(field.path) == 1 or name not in _TOP_LEVEL_ONLY):
                return place + behind * len(_NAMES[column]), len(field.path)
    return None


def _believed(kind: str, field: Field) -> bool:
    """Tell whether values of a field can be of a kind: one number among them is enough, none at all is a text."""
    if kind not in {"count", "span"} or not field.samples:
        return True
    return any(_number(sample) is not None for sample in field.samples)


def _scale(kind: str, field: Field) -> tuple[float, str]:
    """Give the factor to milliseconds of a span of time, and what to say of a guess."""
    if kind != "span":
        return 1.0, ""
    name = plain_name(field.path[-1])
    name = _PREFIX.sub("", name) if not name.startswith("upstream_") or "http" in name else name
    if _MILLIS.search(name):
        return 1.0, ""
    if _SECONDS.search(name):
        return 1000.0, ", seconds"
    numbers = [number for sample in field.samples if (number := _number(sample)) is not None]
    if numbers and max(numbers) < 3600 and any(number != int(number) for number in numbers):
        return 1000.0, ", seconds by its values"
    return 1.0, ", milliseconds by its values"


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number - number == 0 else None


def _without_twice(picks: list[Pick]) -> list[Pick]:
    """Leave a field to the column for which it was named by the caller, else to the first one."""
    mapped = {each.path: each.column for each in picks if each.how.startswith("--map")}
    found: list[Pick] = []
    for each in picks:
        owner = mapped.setdefault(each.path, each.column)
        if owner == each.column:
            found.append(each)
    return found
