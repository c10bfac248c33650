"""SGLang's lines: the forms of what it prints at start and while it runs.

Source: line formats of 0.4.3 to 0.5.23, of ``model_runner``, ``scheduler``, ``disaggregation`` and ``kv_canary``.
What its arguments mean stands in ``sglang.py``.
"""

import re
from collections.abc import Iterable

from kvfence.evidence.arguments import pairs
from kvfence.evidence.forms import plain, reading, settling, whole, within_requests
from kvfence.evidence.lines import json_record
from kvfence.evidence.readings import Form, Found, Line
from kvfence.evidence.sglang import ENGINE, read_arguments, read_server_info
from kvfence.evidence.starts import START

CONTEXT_STEP = 256
"""Context lengths are multiples of this; another number at the very end of a line is taken for half a number."""

_STATED_ROLE = re.compile(
    r"(?<![\w/.-])(prefill|decode)(?:[ -](?:leg|worker|server|node|instance|role|engine|side))?"
    r"(?:\s{0,12}[(\[][^)\]]{0,60}[)\]]){0,4}\s{0,12}[:|-]?\s{0,12}$",
    re.IGNORECASE,
)
_QUOTING = re.compile(r"['\"`=?&{<]")
"""What stands before words that a line only repeats: a quote, a query, an assignment."""
_OWN_LINE = re.compile(r"^\s*\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def _read_pool(match: re.Match[str], _line: Line) -> Iterable[Found]:
    text = match.string
    ends = match.end() >= len(text.rstrip())
    if ends and not match["own"] and (_OWN_LINE.match(text) or '"' in match[0]):
        return  # the engine's own line goes on after the number, and so does JSON: this one was cut off
    yield Found("pool_tokens", whole(match["pool"]), 6 if match["own"] else _weight(match))
    if stated_role := _STATED_ROLE.search(text[max(0, match.start() - 300) : match.start()]):
        yield Found("role", stated_role[1].lower(), 3)


def _read_context(match: re.Match[str], line: Line) -> Iterable[Found]:
    """The context; where the line ends with it (as old releases' lines do) it may also have been cut off."""
    context = whole(match["context"])
    if match.end() >= len(match.string.rstrip()):
        if context % CONTEXT_STEP:
            return
        line.problem = f"line {line.number} ends right after context_len={context}: an old release, or cut off"
    yield Found("context_len", context, _weight(match))


def _weight(match: re.Match[str]) -> int:
    """Give more to the scheduler's own start-up line than to the same words in the midst of another line."""
    before, found, _ = match.string.partition("max_total_num_tokens")
    is_own = found and len(before) <= match.start() and not _QUOTING.search(before)
    return 9 if is_own else 7


def _read_info_line(match: re.Match[str], _line: Line) -> Iterable[Found]:
    record = json_record(match[0])
    if record is not None:
        yield from read_server_info(record)


def _read_server_args(match: re.Match[str], _line: Line) -> Iterable[Found]:
    yield Found(START, True)
    yield from read_arguments(dict(pairs(match.string, match.end() - 1)))


def _read_leak(match: re.Match[str], line: Line) -> Iterable[Found]:
    text = " ".join([match.string, *line.rest(8)]) if match.string == line.text else match.string
    sizes = {
        found[1]: whole(found[2])
        for found in re.finditer(
            r"(?<![\w.])(?:self\.)?(\w+(?:_size|_tokens)(?!\())\s*=\s*(\d{1,15})(?!\d)", text[match.start() :]
        )
    }
    yield Found("event", "memory_leak")
    pool, available = sizes.get("max_total_num_tokens"), sizes.get("available_size")
    if pool is None or available is None:
        return
    leak = pool - available - sizes.get("evictable_size", 0) - sizes.get("protected_size", 0)
    yield Found("leak_tokens", leak)
    if leak < 0:
        yield Found("event", "memory_leak_double_free")


def _read_canary(match: re.Match[str], _line: Line) -> Iterable[Found]:
    yield Found("kv_canary_active", True)
    yield Found("pool_class", match["pool"])
    yield Found("event", "canary_attached")
    if match["bytes"] is not None:
        read_bytes = int(match["bytes"])
        yield Found("kv_canary_real_data", "none" if read_bytes == 0 else ("partial" if read_bytes <= 16 else "all"), 8)


def _read_exceeds(match: re.Match[str], line: Line) -> Iterable[Found]:
    yield Found("effective_input_limit", whole(match["limit"]), 7)
    yield Found("event", "input_exceeds_limit")
    for following in line.rest(40):
        if answer := re.search(r'"POST /[^"]{0,200}" (\d{3})', following):
            if answer[1] == "200":
                yield Found("event", "exceeds_then_200")
            return


def _read_one_token(match: re.Match[str], line: Line) -> Iterable[Found]:
    text = match.string
    others = [
        whole(count)
        for count in re.findall(r"prompt_tokens\\?['\"]?\s*[=:]\s*(\d{1,12})\b", " ".join((text, *line.rest(3))))
    ]
    stub = re.search(r"'type': 'length', 'length': 0\}", text)
    if stub or any(count > 1 for count in others):
        yield Found("event", "prompt_tokens_1_beside_long")


def _read_allocated(match: re.Match[str], _line: Line) -> Iterable[Found]:
    yield Found("allocated_tokens", whole(match["tokens"]))


def _events(name: str, anchor: str, pattern: str, *more: Found) -> Form:
    return reading(ENGINE, anchor, pattern, lambda _match, _line: [Found("event", name), *more])


_ONE_TOKEN = (
    "prompt_tokens=1,", "prompt_tokens=1 ", "prompt_tokens=1;", "prompt_tokens': 1,", 'prompt_tokens": 1,',
    'prompt_tokens":1,', 'prompt_tokens\\": 1,', 'prompt_tokens": 1}', 'prompt_tokens":1}',
)  # fmt: skip

FORMS: tuple[Form, ...] = (
    plain(ENGINE, "sglang==", r"(?<![\w-])sglang==(?P<version>\d+\.\d+[\w.+]*)(?=[\s,;'\"]|$)", weight=2),
    plain(
        ENGINE,
        "lmsysorg/sglang:v",
        r"lmsysorg/sglang:v(?P<version>\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?)(?=[\s'\"@-]|$)",
        weight=2,
    ),
    plain(
        ENGINE,
        "is larger than the profiled value",
        r"max_total_tokens={N} is larger than the profiled value (?P<pool_tokens_estimated>{N})\.",
        weight=3,
    ),
    plain(
        ENGINE,
        "greater than the derived context_length",
        r"context_length \({N}\) is greater than the derived context_length \((?P<model_context>{N})\)",
    ),
    reading(
        ENGINE,
        "max_total_num_tokens",
        r"(?<![\w:.])(?P<own>self\.)?max_total_num_tokens\\?['\"]?\s?[=:]\s?(?P<pool>{N})",
        _read_pool,
    ),
    reading(ENGINE, "context_len", r"(?<![\w.])context_len\\?['\"]?\s?[=:]\s?(?P<context>{N})", _read_context),
    reading(
        ENGINE, "KV Cache is allocated", r"KV Cache is allocated\..{0,60}?#tokens: (?P<tokens>{N}),", _read_allocated
    ),
    plain(
        ENGINE,
        "liding window memory pool",
        r"liding window memory pool\. full_layer_tokens=(?P<pool_tokens>{N})[^=]{0,40}?, "
        r"swa_layer_tokens=(?P<pool_tokens_swa>{N})",
        Found("hybrid_model", True),
        weight=4,
    ),
    plain(
        ENGINE,
        "memory calculation",
        r"(?i:DSv4) memory calculation: .{0,400}?\bfull_token=(?P<pool_tokens>{N})",
        Found("hybrid_model", True),
        weight=3,
    ),
    plain(
        ENGINE,
        "pool sizes: ",
        r"(?i:DSv4) pool sizes: full=(?P<pool_tokens>{N}), swa=(?P<pool_tokens_swa>{N})",
        Found("hybrid_model", True),
        weight=4,
    ),
    plain(
        ENGINE,
        "SWAKVPool mem usage",
        r"SWAKVPool mem usage: .{0,60}?swa size: (?P<pool_tokens_swa>{N}), full size: (?P<pool_tokens>{N})",
        Found("hybrid_model", True),
        weight=3,
    ),
    plain(
        ENGINE,
        "KV pool holds",
        r"KV pool holds (?P<pool_tokens>{N}) tokens, fewer than --context-length (?P<context_len>{N})\b",
        weight=8,
    ),
    plain(
        ENGINE,
        "mem_fraction_static=",
        r"Memory profiling: .{0,200}?mem_fraction_static=(?P<memory_fraction>{F})",
        weight=4,
    ),
    plain(ENGINE, "Tree cache initialized", r"Tree cache initialized: .{0,80}?\bimpl=(?P<prefix_cache>\w+)(?=\s)"),
    plain(
        ENGINE,
        "Tree cache initialized",
        r"Tree cache initialized: .{0,200}?\bhybrid_swa=True\b",
        Found("hybrid_model", True),
    ),
    plain(
        ENGINE,
        "Tree cache initialized",
        r"Tree cache initialized: .{0,200}?\bhybrid_swa=False hybrid_ssm=False\b",
        Found("hybrid_model", False),
    ),
    reading(ENGINE, "internal_states", r"\{.*\}", _read_info_line),
    reading(ENGINE, "server_args=", r"\bserver_args=(?:ServerArgs\(|\{)", _read_server_args),
    reading(
        ENGINE,
        "exceeds the maximum allowed length",
        r"Input length \({N} tokens\) exceeds the maximum allowed length \((?P<limit>{N}) tokens\)",
        _read_exceeds,
    ),
    plain(
        ENGINE,
        "the model's context length",
        r"The input \({N} tokens\) is longer than the model's context length \((?P<context_len>{N}) tokens\)",
        weight=8,
    ),
    plain(
        ENGINE,
        "max_req_input_len",
        r"(?<!\w)max_req_input_len\\?['\"]?\s?[=:]\s?(?P<effective_input_limit>{N})(?=[,})\s])",
        weight=8,
    ),
    reading(
        ENGINE,
        "memory leak detected!",
        r"(?:token_to_kv_pool_allocator|pool|req_to_token_pool|KV) memory leak detected!",
        _read_leak,
    ),
    reading(
        ENGINE,
        "attach_canary_buffers",
        r"attach_canary_buffers: pool=(?P<pool>\w+)(?=[\s,])(?:.{0,200}?\bread_bytes=(?P<bytes>\d{1,9})\b)?",
        _read_canary,
    ),
    plain(
        ENGINE,
        "no attacher registered for pool class",
        r"kv-canary: no attacher registered for pool class (?P<pool_class>\w+)(?=[;\s])",
        Found("kv_canary_active", False),
    ),
    _events(
        "kv_canary_violation",
        "anary violation",
        r"(?:kv_canary|KV cache canary) violation",
        Found("kv_canary_active", True),
    ),
    _events(
        "kv_checksum_skipped", "KV checksum skipped", r"KV checksum skipped", Found("kv_checksum_active", False, 7)
    ),
    _events(
        "kv_checksum_mismatch",
        "KV checksum mismatch",
        r"KV checksum mismatch (?:req=|on a peer rank)",
        Found("kv_checksum_active", True, 6),
    ),
    _events(
        "kv_checksum_buffers_differ",
        "metadata buffers but this prefill has",
        r"registered \d+ metadata buffers but this prefill has \d+",
        Found("kv_checksum_active", False, 7),
    ),
    _events(
        "deferred_release_timeout",
        "Deferred KV release for room",
        r"Deferred KV release for room \S{1,60} timed out",
        Found("deferred_release", True),
    ),
    plain(
        ENGINE,
        "Deferred KV release for room",
        r"Deferred KV release for room \S{1,60} timed out after (?P<release_timeout_s>{F})s",
    ),
    _events("generationless_ack", "Generation-less ABORT_ACK", r"Generation-less ABORT_ACK"),
    _events("context_corruption", "Context corruption detected", r"Context corruption detected"),
    _events("transfer_failed", "ecode transfer failed", r"Decode transfer failed for request"),
    _events("transfer_failed", "refill transfer failed", r"Prefill transfer failed for request"),
    _events(
        "prompt_auto_truncated",
        "max context length. Truncated.",
        r"KV cache pool size or the max context length\. Truncated\.",
        Found("auto_truncate", True),
    ),
    settling(plain(ENGINE, "#inflight-req:", r"Prefill batch.{0,400}#inflight-req:", Found("role", "prefill", 4))),
    settling(plain(ENGINE, "#transfer-req:", r"Decode batch.{0,400}#transfer-req:", Found("role", "decode", 4))),
    within_requests(reading(ENGINE, _ONE_TOKEN, r"prompt_tokens\\?['\"]?\s*[=:]\s*1(?=[,;\s}])", _read_one_token)),
)
