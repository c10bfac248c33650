"""Each slot is promised the whole context, and the pool holds it once.

What it checks:
    llama.cpp with several slots on one unified KV cache: slots times context against the pool.

Why it matters:
    The cache is promised several times over (four slots of 1,024 on 1,024 tokens). Long requests at once push each
    other out or fail; a gateway that trusts the context per slot sends them.

Evidence:
    `n_ctx`, `new slot, n_ctx` in the log; `/props` and its `total_slots`.

How to fix:
    `--ctx-size` of slots times context, or fewer slots.

References:
    ggml-org/llama.cpp#24124, #28056.
"""

from kvfence.audit.capacity import context_of, pool_of
from kvfence.audit.deployment import Engine
from kvfence.audit.judge import any_role, failed, passed, undecided
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown


def judge(engine: Engine) -> Outcome:
    """Compare what is promised with what is there."""
    slots, pool, context = engine.facts.slots, pool_of(engine), context_of(engine)
    if isinstance(slots, Unknown) or isinstance(pool, Unknown) or isinstance(context, Unknown):
        return undecided("slots, context per slot and cache are not all known", slots, pool, context)
    promised = slots.value * context.value
    text = f"{slots.value} slots of {context.value:,} tokens on a cache of {pool.value:,}"
    if promised <= pool.value:
        return passed(text, slots, pool, context)
    fix = Fix(
        f"Start with `--ctx-size {promised}`, or with fewer slots (`--parallel`)",
        f"--ctx-size {promised}",
        changes={"pool_tokens": promised},
    )
    return failed(text, slots, pool, context, fixes=(fix,))


RULE = Rule(
    id="KVF0051",
    slug="slots-promise-more-than-the-pool",
    severity=Severity.LOW,
    engines=(EngineRange("llama.cpp"),),
    since="0.1.0",
    check=any_role(judge),
)
