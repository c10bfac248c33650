"""llama.cpp: its context, its KV cells and its server's slots.

With a unified cache every slot is promised the whole context while all share one pool of cells.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from kvfence.evidence.arguments import Argument, stated
from kvfence.evidence.forms import plain, reading, whole
from kvfence.evidence.lines import json_record
from kvfence.evidence.readings import Form, Found, Line, Notebook

ENGINE = "llama.cpp"

ARGUMENTS: dict[str, Argument] = {
    "model": Argument("model"),
    "ctx_size": Argument("total_context", "int"),
    "parallel": Argument("slots", "int", 4),
    "cache_type_k": Argument("kv_dtype"),
    "api_key": Argument("api_key_set", "set"),
}


def read_arguments(arguments: Mapping[str, object]) -> Iterator[Found]:
    """Facts that a server's command line states."""
    yield from stated(arguments, ARGUMENTS)
    if arguments.get("kv_unified") is True:
        yield Found("unified", True)


def read_props(props: Mapping[str, object]) -> Iterator[Found]:
    """Facts of ``GET /props``: the context of a slot and the number of slots."""
    settings = props.get("default_generation_settings")
    context = settings.get("n_ctx") if isinstance(settings, Mapping) else None
    if isinstance(context, int) and not isinstance(context, bool):
        yield Found("context_len", context, 6)
    slots = props.get("total_slots")
    if isinstance(slots, int) and not isinstance(slots, bool):
        yield Found("slots", slots, 8)
    build = re.match(r"^b(\d{3,6})-[0-9a-f]{6,40}$", str(props.get("build_info", "")))
    if build:
        yield Found("version", build[1])
    if isinstance(path := props.get("model_path"), str) and not path.startswith("<"):
        yield Found("model", path)


def _read_props_line(match: re.Match[str], _line: Line) -> Iterable[Found]:
    record = json_record(match[0])
    if record is not None:
        yield from read_props(record)


def _read_slot(match: re.Match[str], _line: Line) -> Iterable[Found]:
    yield Found("slot_context", whole(match["context"]))
    if match["id"] is not None:
        yield Found("slot_id", int(match["id"]))


def _read_cells(match: re.Match[str], _line: Line) -> Iterable[Found]:
    text = match.string
    is_swa = re.search(r"(?<!non-)SWA\b", text[: match.start()]) is not None
    streams = int(match["streams"] or 1)
    yield Found("swa_cells" if is_swa else "cells", whole(match["cells"]) * max(1, streams))


def _read_iswa(match: re.Match[str], _line: Line) -> Iterable[Found]:
    yield Found("cells" if match["non"] else "swa_cells", whole(match["cells"]), 7)


FORMS: tuple[Form, ...] = (
    reading(ENGINE, "default_generation_settings", r"\{.*\}", _read_props_line),
    plain(
        ENGINE,
        "< n_ctx_train",
        r"n_ctx_(?:seq|per_seq) \((?P<sequence_context>{N})\) < n_ctx_train \((?P<model_context>{N})\)",
        weight=6,
    ),
    plain(
        ENGINE,
        "> n_ctx_train",
        r"n_ctx_(?:seq|per_seq|pre_seq) \((?P<sequence_context>{N})\) > n_ctx_train \((?P<model_context>{N})\)",
        weight=6,
    ),
    plain(ENGINE, "n_ctx_seq", r"\bn_ctx_seq\s{0,8}= (?P<sequence_context>{N})"),
    plain(ENGINE, "n_ctx_per_seq", r"\bn_ctx_per_seq\s{0,8}= (?P<sequence_context>{N})"),
    plain(ENGINE, "n_ctx_train", r"\bn_ctx_train\s{0,12}= (?P<model_context>{N})"),
    plain(
        ENGINE,
        "n_ctx  ",
        r"(?:llama_context|llama_new_context_with_model|llama_init_from_model): n_ctx\s{2,12}= (?P<total_context>{N})",
    ),
    plain(ENGINE, "n_seq_max", r"llama_\w{3,40}: n_seq_max\s{0,8}= (?P<sequences>{N})"),
    plain(ENGINE, "kv_unified", r"\bkv_unified\s{0,8}= '?true\b", Found("unified", True)),
    plain(ENGINE, "kv_unified", r"\bkv_unified\s{0,8}= '?false\b", Found("unified", False)),
    plain(
        ENGINE,
        "--kv-unified-per-slot",
        r"capping per-slot context \((?P<total_context>{N})\) to --kv-unified-per-slot \((?P<slot_context>{N})\)",
        Found("unified", True),
        weight=4,
    ),
    plain(ENGINE, "n_slots = ", r"\bn_slots = (?P<slots>{N})", weight=7),
    plain(ENGINE, "n_slots=", r"\binitializing slots\b.{0,80}\bn_slots=(?P<slots>{N})", weight=7),
    reading(
        ENGINE,
        "new slot",
        r"(?:\bid\s{1,3}(?P<id>\d{1,5}) \|[^|]{0,40}\| )?new slot,? n_ctx(?:_slot)? = (?P<context>{N})",
        _read_slot,
    ),
    reading(
        ENGINE, "n_ctx_slot=", r"\bnew slot\b.{0,120}?\bid_slot=(?P<id>\d{1,5}) n_ctx_slot=(?P<context>{N})", _read_slot
    ),
    plain(ENGINE, "n_slots = ", r"\bn_slots = {N}, n_ctx_slot = (?P<slot_context>{N})"),
    reading(
        ENGINE,
        "SWA KV cache, size = ",
        r"creating\s+(?P<non>non-)?SWA KV cache, size = (?P<cells>{N}) cells",
        _read_iswa,
    ),
    reading(
        ENGINE,
        " cells,",
        r"llama_kv_cache\w{0,20}: .{0,60}?\(\s{0,12}(?P<cells>{N}) cells,(?:.{0,40}?\d{1,5}/(?P<streams>\d{1,5}) "
        r"seqs)?",
        _read_cells,
    ),
    plain(ENGINE, "kv_size = ", r"llama_kv_cache\w{0,20}: .{0,20}?kv_size = (?P<cells>{N}),", weight=4),
    plain(ENGINE, "build info", r"build info.{0,120}?\bbuild=(?P<version>\d{3,6})(?=\s)"),
    plain(ENGINE, "build: ", r"\bbuild: (?P<version>\d{3,6}) \([0-9a-f]{6,40}\) with"),
    plain(ENGINE, "build_info: b", r"\bbuild_info: b(?P<version>\d{3,6})-[0-9a-f]{6,40}\b"),
)


def derive(book: Notebook) -> None:
    """The pool from cells or from the whole context, the context of one slot, and how many slots there are."""
    ids = {int(reading.value) for reading in book.all("slot_id")}
    if ids and "slots" not in book:
        book.derive(Found("slots", len(ids), 5), book.all("slot_id")[-1])
    slot, sequence, total = book.choose("slot_context"), book.choose("sequence_context"), book.choose("total_context")
    if chosen := slot or sequence:
        book.derive(Found("context_len", chosen.value, 7), chosen)
    elif total is not None and book.number("slots") == 1:
        book.derive(Found("context_len", total.value, 3), total)
    swa = book.choose("swa_cells")
    if swa is not None:
        book.derive(Found("pool_tokens_swa", swa.value), swa)
        book.derive(Found("hybrid_model", True), swa)
    if pool := book.choose("cells") or total:
        book.derive(Found("pool_tokens", pool.value, 6), pool)
