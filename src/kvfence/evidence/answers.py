"""Answers of HTTP endpoints, live or saved: ``/server_info``, ``/props``, ``/info``, ``/v1/models``, Prometheus.

Not for: fetching them (``endpoints.py``).
"""

import json
from collections.abc import Iterable, Mapping

from kvfence.evidence import dynamo, llama_cpp, sglang, tgi
from kvfence.evidence.facts import Origin, SourceFacts
from kvfence.evidence.lines import quote
from kvfence.evidence.metrics import place_of_sample, read_sample
from kvfence.evidence.readings import Found, Notebook, Place

_SGLANG_KEYS = {
    "internal_states",
    "max_req_input_len",
    "disaggregation_mode",
    "mem_fraction_static",
    "chunked_prefill_size",
}
_TGI_KEYS = {"max_batch_total_tokens", "max_total_tokens", "max_input_tokens", "max_input_length", "model_id"}


def read_answer(name: str, document: object, kind: str = "answer") -> list[SourceFacts] | None:
    """The facts of one JSON document; None where it is of no known kind."""
    from kvfence.evidence.manifests import is_manifest, read_objects

    if is_manifest(document):
        return read_objects(name, [document])
    if isinstance(document, Mapping) and isinstance(document.get("data"), Mapping) and "result" in document["data"]:
        return read_vector(name, document["data"]["result"])
    book = Notebook(name)
    if not isinstance(document, Mapping) or not note_answer(book, document):
        return None
    from kvfence.evidence.gather import facts_of

    return [facts_of(book, kind)]


def note_answer(book: Notebook, answer: Mapping[str, object], source: str = "") -> bool:
    """Write down what an answer says; False where it is of no known kind."""
    if len(_SGLANG_KEYS & answer.keys()) >= 2 or "max_req_input_len" in answer:
        _note(book, sglang.ENGINE, sglang.read_server_info(answer), answer, source)
    elif isinstance(answer.get("default_generation_settings"), Mapping):
        _note(book, llama_cpp.ENGINE, llama_cpp.read_props(answer), answer, source)
    elif len(_TGI_KEYS & answer.keys()) >= 2:
        _note(book, tgi.ENGINE, tgi.read_arguments(answer), answer, source)
    elif isinstance(answer.get("loads"), list):
        _note(book, sglang.ENGINE, _read_loads(answer), answer, source)
    elif answer.get("object") == "list" and isinstance(answer.get("data"), list):
        _note(book, "", _read_models(book, answer), answer, source)
    elif set(answer) == {"version"} and isinstance(answer["version"], str):
        _note(book, "", [Found("version", answer["version"])], answer, source)
    elif "kv_cache_block_size" in answer and ("runtime_config" in answer or "total_kv_blocks" in answer):
        _note(book, dynamo.ENGINE, dynamo.read_card(answer), answer, source)
    elif dynamo.is_liveness(answer):
        _note(book, dynamo.ENGINE, dynamo.read_health(answer), answer, source)
    elif "model_path" in answer and "served_model_name" in answer:
        _note(book, sglang.ENGINE, [Found("model", str(answer["model_path"]))], answer, source)
    else:
        return False
    return True


def _note(book: Notebook, engine: str, found: Iterable[Found], answer: Mapping[str, object], source: str) -> None:
    if engine:
        book.saw(engine)
    for item in found:
        book.add(item, origin_of(source or book.source, answer, item))


def origin_of(source: str, answer: Mapping[str, object], item: Found) -> Origin:
    """Where in an answer a value stands: the key that holds it, if it is at the top; the value as quote."""
    key = next((key for key, value in answer.items() if value == item.value and not isinstance(value, bool)), item.name)
    shown = json.dumps({key: answer.get(key, item.value)}, default=str)[:400]
    return Origin(source, None, quote(shown), None, key)


def _read_loads(answer: Mapping[str, object]) -> Iterable[Found]:
    loads = answer["loads"]
    pools: list[int] = []
    for load in loads if isinstance(loads, list) else []:
        if isinstance(load, Mapping):
            pool, mode = load.get("max_total_num_tokens"), load.get("disaggregation")
            if isinstance(pool, int):
                pools.append(pool)
            if isinstance(mode, Mapping):
                yield from sglang.read_arguments({"disaggregation_mode": mode.get("mode")})
    if pools:
        yield Found("pool_tokens", min(pools), 8)
    if isinstance(answer.get("version"), str):
        yield Found("version", str(answer["version"]))


def _read_models(book: Notebook, answer: Mapping[str, object]) -> Iterable[Found]:
    data = answer["data"]
    for model in data if isinstance(data, list) else []:
        if not isinstance(model, Mapping):
            continue
        if isinstance(owner := model.get("owned_by"), str) and owner in ("vllm", "sglang", "kvfence"):
            book.saw(owner)
        if isinstance(longest := model.get("max_model_len"), int) and not isinstance(longest, bool):
            yield Found("advertised_context", longest)
            if owner == "kvfence":  # here the advertised context is the one that admission enforces
                yield Found("context_len", longest)
        if isinstance(model.get("id"), str):
            yield Found("model", str(model["id"]), 2)


def read_vector(name: str, result: object) -> list[SourceFacts]:
    """The facts of a Prometheus server's instant vector: one for each instance, engine and rank."""
    from kvfence.evidence.gather import facts_of

    books: dict[Place, Notebook] = {}
    for row in result if isinstance(result, list) else []:
        if not isinstance(row, Mapping):
            continue
        labels, value = row.get("metric"), row.get("value")
        if not isinstance(labels, Mapping) or not isinstance(value, list) or len(value) != 2:
            continue
        metric = str(labels.get("__name__", ""))
        place = place_of_sample({str(key): str(item) for key, item in labels.items()})
        book = books.setdefault(place, Notebook(name, place))
        book.saw(metric.partition(":")[0])
        for item in read_sample(metric, {str(k): str(v) for k, v in labels.items()}, _number(value[1])):
            if item.name != "event":
                book.add(item, Origin(name, None, quote(f"{metric} {value[1]}"), str(value[0]), metric))
    return [facts_of(book, "prometheus") for book in books.values()]


def _number(text: object) -> float:
    try:
        return float(str(text))
    except ValueError:
        return float("nan")
