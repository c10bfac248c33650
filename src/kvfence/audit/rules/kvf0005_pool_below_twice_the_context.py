"""The pool holds the context once, but not twice.

What it checks:
    That the pool of each rank is at least twice the context length.

Why it matters:
    A pool just above the context is right today. The next change of weights, quantisation, parallelism or memory
    fraction takes memory from the pool, and nothing tells. The provider of the incident chose about twice the
    context. Enlarging alone stays brittle: the release and the other rules matter as well.

Evidence:
    As of KVF0001.

How to fix:
    Free memory for the pool or lower the context; read the pool after every change (`--baseline` does).

References:
    Post-mortem (2026-10-26), remedies: about 2.04 million tokens for a context of 1,048,576.
"""

from kvfence.audit.capacity import context_of, enlarge_pool, pool_of
from kvfence.audit.deployment import Engine
from kvfence.audit.judge import disaggregated, failed, passed, undecided
from kvfence.audit.rule import Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown


def judge(engine: Engine) -> Outcome:
    """Compare the pool with twice the context."""
    pool, context = pool_of(engine), context_of(engine)
    if isinstance(pool, Unknown) or isinstance(context, Unknown):
        return undecided("pool and context are not both known", pool, context)
    text = f"the pool is {pool.value / max(context.value, 1):.2f} times the context"
    if pool.value >= 2 * context.value:
        return passed(text, pool, context)
    return failed(
        text + "; twice leaves room for the next change", pool, context, fixes=(enlarge_pool(engine, context.value),)
    )


RULE = Rule(
    id="KVF0005",
    slug="pool-below-twice-the-context",
    severity=Severity.INFO,
    since="0.1.0",
    check=disaggregated(judge),
)
