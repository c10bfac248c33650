"""The arithmetic of pools and contexts: how long a prompt an engine accepts, and which prompts fall between two limits.

Numbers are of one rank, never a sum. SGLang: a request may hold min(context, pool) - 1 tokens, its prompt 5 less, and a
prompt that is not below that limit is refused. Where a number is missing the answer is ``Unknown``.
"""

from msgspec import Struct

from kvfence.audit.deployment import Deployment, Engine, Role
from kvfence.audit.rule import Fix
from kvfence.evidence.facts import IntFact, Known, Unknown

SGLANG_MARGIN = 6
"""1 for the next token, 5 more for the prompt."""
PAGE_ASSUMED = 64
"""Used only to leave room in a proposed value where the page size is not known."""
_SHORTEN_TO_FIT = frozenset({"sglang", "lmdeploy"})
"""Engines whose own input limit is the smaller of context and pool, so that the limit is evidence of the pool."""


class ContextFlags(Struct, frozen=True):
    """How an engine is told its context length, and how it is given more memory for the pool."""

    context: str
    memory: str


_FLAGS = {
    "sglang": ContextFlags("--context-length {}", "--mem-fraction-static"),
    "vllm": ContextFlags("--max-model-len {}", "--gpu-memory-utilization"),
    "tensorrt-llm": ContextFlags("--max_seq_len {}", "--kv_cache_free_gpu_memory_fraction"),
    "lmdeploy": ContextFlags("--session-len {}", "--cache-max-entry-count"),
    "tgi": ContextFlags("--max-total-tokens {}", "--max-batch-total-tokens"),
    "llama.cpp": ContextFlags("--ctx-size {}", "--kv-unified"),
}


def context_of(engine: Engine) -> IntFact:
    """Give the engine's context; what the engine's own model list says is its context too."""
    facts = engine.facts
    if isinstance(facts.context_len, Known):
        return facts.context_len
    if engine.engine in {"sglang", "vllm"} and isinstance(facts.advertised_context, Known):
        return facts.advertised_context
    return facts.context_len


def pool_of(engine: Engine) -> IntFact:
    """Give the pool of one rank: as stated, else as it follows from a limit the engine itself reports."""
    facts = engine.facts
    return facts.pool_tokens if isinstance(facts.pool_tokens, Known) else facts.pool_tokens_estimated


def margin_of(engine: Engine) -> int:
    """Give by how much an engine's input limit lies below what bounds it."""
    return SGLANG_MARGIN if engine.engine == "sglang" else 0


def limit_is_evidence(engine: Engine) -> bool:
    """Tell whether the engine's own input limit shows which of pool and context bounds a prompt."""
    return engine.engine in _SHORTEN_TO_FIT


def input_limit(engine: Engine) -> IntFact:
    """Give the prompt length from which on the engine refuses: what it says itself, else from pool and context."""
    facts, context, pool = engine.facts, context_of(engine), pool_of(engine)
    if isinstance(facts.effective_input_limit, Known):
        return facts.effective_input_limit
    if engine.engine == "vllm" and isinstance(context, Known):
        return context
    if isinstance(context, Unknown):
        return Unknown(f"the context length is not known: {context.reason}")
    if isinstance(pool, Unknown):
        return Unknown(f"the pool is not known: {pool.reason}")
    if isinstance(facts.cp_size, Known) and facts.cp_size.value > 1:
        return Unknown("context parallelism: whether the pool shown is of one rank cannot be told")
    bound = min(context, pool, key=lambda fact: fact.value)
    return Known(bound.value - margin_of(engine), bound.origin)


def page_of(engine: Engine) -> int:
    """Give the page size, or the one assumed for room in proposed values."""
    return engine.facts.page_size.value if isinstance(engine.facts.page_size, Known) else PAGE_ASSUMED


def context_setting(engine: Engine, tokens: int) -> str:
    """Give the flag that sets this engine's context; empty where the engine is not known."""
    flags = _FLAGS.get(engine.engine)
    return flags.context.format(tokens) if flags else ""


def fitting_context(deployment: Deployment) -> int:
    """Give the largest context that every engine's pool and context hold, with one page to spare."""
    sizes = [
        fact.value - max(page_of(engine), 1)
        for engine in deployment.engines
        if engine.role is not Role.SINGLE and isinstance(fact := pool_of(engine), Known)
    ]
    limits = [
        fact.value
        for engine in deployment.engines
        if engine.role is not Role.SINGLE and isinstance(fact := context_of(engine), Known)
    ]
    return max(min([*sizes, *limits], default=0), 0)


def lower_context(engine: Engine, tokens: int) -> Fix:
    """Give the fix that sets the same, smaller context on every role."""
    setting = context_setting(engine, tokens)
    how = f"`{setting}`" if setting else f"a context length of {tokens:,}"
    text = f"Start every role with {how}, and tell clients and gateways no more than that"
    if not limit_is_evidence(engine):
        return Fix(text, setting, changes={"context_len": tokens}, forgets=("advertised_context",))
    changes = {"context_len": tokens, "effective_input_limit": tokens - margin_of(engine)}
    return Fix(text, setting, changes=changes, forgets=("advertised_context",))


def enlarge_pool(engine: Engine, context: int) -> Fix:
    """Give the fix that makes the pool hold the context twice; by how much memory, the engine's log must show."""
    flags = _FLAGS.get(engine.engine)
    now = engine.facts.memory_fraction
    flag = f"`{flags.memory}`" if flags else "the memory for the pool"
    said = f" (now {now.value:g})" if isinstance(now, Known) else ""
    text = (
        f"Free memory for the pool: raise {flag}{said} or store fewer bytes a token, until the start-up log shows "
        f"more than {context:,} tokens on every rank; twice that, {2 * context:,}, leaves room for the next change"
    )
    return Fix(text, changes={"pool_tokens": 2 * context}, forgets=("effective_input_limit", "pool_tokens_estimated"))
