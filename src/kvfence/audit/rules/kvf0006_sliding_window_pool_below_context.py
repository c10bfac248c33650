"""The sliding-window sub-pool of a hybrid model is smaller than the context.

What it checks:
    The sub-pool for sliding-window layers, which is a pool of its own, against the context length.

Why it matters:
    The number in the start-up line is the full pool. In a public case the full pool was 186,368 tokens and prefill's
    real cap 18,432, the sub-pool's size: a check of the full pool alone passes a server that refuses long prompts.

Evidence:
    `sglang:max_total_num_tokens_swa`, the sub-pool in the memory-profiling lines.

How to fix:
    Give the sub-pool a larger share, or lower the context.

References:
    sgl-project/sglang#24523.
"""

from kvfence.audit.capacity import context_of, lower_context, page_of
from kvfence.audit.deployment import Engine
from kvfence.audit.judge import disaggregated, failed, not_applicable, passed, undecided
from kvfence.audit.rule import Alert, EngineRange, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Known, Unknown


def judge(engine: Engine) -> Outcome:
    """Compare the sub-pool with the context."""
    window, context, hybrid = engine.facts.pool_tokens_swa, context_of(engine), engine.facts.hybrid_model
    if isinstance(window, Unknown) and isinstance(hybrid, Known) and not hybrid.value:
        return not_applicable("the model has one kind of attention, hence one pool", hybrid)
    if isinstance(window, Unknown):
        return undecided("whether there is a sliding-window sub-pool, and its size, is not known", hybrid)
    if isinstance(context, Unknown):
        return undecided(f"the context length is not known: {context.reason}", window)
    if window.value >= context.value:
        return passed(f"sub-pool {window.value:,} holds the context of {context.value:,}", window, context)
    text = f"sliding-window sub-pool {window.value:,} < context {context.value:,}: prompts above it may be refused"
    fix = lower_context(engine, max(window.value - page_of(engine), 1))
    return failed(text, window, context, fixes=(fix,))


RULE = Rule(
    id="KVF0006",
    slug="sliding-window-pool-below-context",
    severity=Severity.MEDIUM,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=disaggregated(judge),
    alerts=(
        Alert(
            "KvSlidingWindowPoolBelowContext",
            "min by (instance) (sglang:max_total_num_tokens_swa > 0) < max by (instance) (sglang:context_len)",
            "The sliding-window sub-pool does not hold one prompt of the context length",
        ),
    ),
)
