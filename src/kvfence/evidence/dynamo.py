"""NVIDIA Dynamo: what its workers print about the engine inside, and its liveness answers."""

from collections.abc import Iterator, Mapping

from kvfence.evidence.forms import plain
from kvfence.evidence.readings import Form, Found, Notebook

ENGINE = "dynamo"

FORMS: tuple[Form, ...] = (
    plain(
        ENGINE,
        "KV-cache capacity: ",
        r"KV-cache capacity: total_kv_blocks={N}, kv_cache_block_size=(?P<page_size>{N}), "
        r"max_kv_tokens=(?P<pool_tokens>{N})",
        weight=8,
    ),
)


def read_card(card: Mapping[str, object]) -> Iterator[Found]:
    """Facts of a model deployment card: blocks, their size, the context that clients are told."""
    runtime = card.get("runtime_config")
    blocks = runtime.get("total_kv_blocks") if isinstance(runtime, Mapping) else card.get("total_kv_blocks")
    size = card.get("kv_cache_block_size")
    if isinstance(size, int) and size > 0:
        yield Found("page_size", size)
        if isinstance(blocks, int) and blocks > 0:
            yield Found("pool_tokens", blocks * size, 6)
    if isinstance(card.get("context_length"), int):
        yield Found("advertised_context", int(str(card["context_length"])))


def is_liveness(answer: Mapping[str, object]) -> bool:
    """Whether an answer is that of Dynamo's ``/live`` or ``/health``."""
    return answer.get("status") == "live" or ("endpoints" in answer and "instances" in answer)


def read_health(answer: Mapping[str, object]) -> Iterator[Found]:
    """What a liveness answer says: how health is checked, and nothing of the pool."""
    if answer.get("status") == "live":
        yield Found("health_check", "liveness only")


def derive(book: Notebook) -> None:
    """Nothing follows from what Dynamo prints."""
    del book
