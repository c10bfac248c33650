"""The KV pool of an engine holds fewer tokens than its context length promises.

What it checks:
    For each engine and rank: pool against context length, with the engine's own limit. SGLang accepts prompts below
    min(context, pool) - 1 - 5; a `max_req_input_len` that is the pool less 6 proves that the pool is what bounds. It
    FAILs whatever the role, unless the text or the caller proves a single node; a gateway's own limit never turns it
    to PASS. A pool equal to the context FAILs as a warning; a sliding-window sub-pool below it leaves it UNKNOWN.

Why it matters:
    The pool is sized at start-up from the memory that is left; the context is a separate setting; nothing forces them
    to agree. A prompt between the two is refused by prefill and, in releases with the defect, handed over all the
    same: decode answers from pages that earlier requests left. HTTP 200, another tenant's text.

Evidence:
    SGLang: `max_total_num_tokens=..., context_len=...` in the start-up log, `sglang:max_total_num_tokens` and
    `sglang:context_len`, `token_capacity` and `max_req_input_len` of `/server_info`. vLLM: `KV cache size: N tokens`
    and the model length. Others: what their logs say. Per rank under data-parallel attention, never the sum.

How to fix:
    Lower the context of every role below the smallest pool, or free memory until every pool is larger than the
    context, better twice as large. Read the pool again after every change of weights, quantisation, parallelism or
    memory fraction. Do not rely on a proxy, nor on the engine, to refuse.

References:
    Post-mortem "Cross-request KV cache exposure in GLM-5.3 on Workers AI" (2026-10-26), recommendation 1;
    sgl-project/sglang#30233, #35421, #30326, #4048, #33448; vllm-project/vllm#2163; InternLM/lmdeploy#3950.
"""

from collections.abc import Iterator

from msgspec import structs

from kvfence.audit.capacity import (
    context_of,
    enlarge_pool,
    fitting_context,
    input_limit,
    limit_is_evidence,
    lower_context,
    margin_of,
    pool_of,
)
from kvfence.audit.deployment import DECLARED_KINDS, Deployment, Engine, Role
from kvfence.audit.judge import SINGLE_IS_SAFE, failed, not_applicable, passed, undecided
from kvfence.audit.rule import Alert, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import IntFact, Known, SourceFacts, Unknown


def check(deployment: Deployment) -> Iterator[Outcome]:
    """Judge each engine, and say which half of a pair was not shown."""
    for engine in deployment.engines:
        if engine.role is Role.SINGLE:
            outcome = not_applicable(SINGLE_IS_SAFE, engine.facts.role)
        else:
            outcome = _judge(engine, deployment)
        yield structs.replace(outcome, subject=engine.name)
    for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        if deployment.of_role(role) and not deployment.of_role(other, Role.UNKNOWN):
            yield structs.replace(
                undecided(f"no source of a {other} engine was given: read its pool too"), subject=other
            )


def _judge(engine: Engine, deployment: Deployment) -> Outcome:
    pool, context = pool_of(engine), context_of(engine)
    bound = _bound_by_limit(engine, pool, context, deployment)
    if bound is not None:
        return bound
    if isinstance(pool, Unknown) and (refusal := _refusal(engine)) is not None:
        return refusal
    if isinstance(pool, Unknown):
        return undecided(f"the pool is not known: {pool.reason}. It stands in the start-up log", context)
    if isinstance(context, Unknown):
        return _against_advertised(engine, pool, deployment)
    if pool.value < context.value and _ranks_share_context(engine):
        return undecided("context parallelism: the pool shown may be one rank's share; /server_info decides", pool)
    if pool.value < context.value:
        return failed(_arithmetic(engine, pool, context, deployment), pool, context, fixes=_fixes(engine, deployment))
    if not engine.engine:
        text = f"pool {pool.value:,}, context {context.value:,}: by how much the pool must be larger, is not known here"
        return undecided(f"{text}, because the engine is not", pool, context)
    if pool.value == context.value and engine.engine == "sglang":
        text = f"pool and context are equal ({pool.value:,}): a prompt of that length does not fit"
        return failed(text, pool, context, fixes=_fixes(engine, deployment), severity=Severity.MEDIUM)
    if not isinstance(engine.facts.pool_tokens, Known) and engine.engine != "vllm":
        return undecided(
            f"about {pool.value:,} tokens are worked out, not shown; context {context.value:,}", pool, context
        )
    doubt = _doubt(engine, pool, context)
    if doubt is not None:
        return doubt
    return passed(f"pool {pool.value:,} holds the context of {context.value:,}", pool, context)


def _doubt(engine: Engine, pool: Known[int], context: Known[int]) -> Outcome | None:
    """Say why a pool that holds the context may still not be enough."""
    window = engine.facts.pool_tokens_swa
    if isinstance(window, Known) and window.value < context.value and not _limit_is_of_context(engine, context):
        text = (
            f"pool {pool.value:,} holds the context of {context.value:,}, its sliding-window sub-pool {window.value:,}"
        )
        return undecided(f"{text} does not; max_req_input_len of /server_info tells what bounds prompts", pool, window)
    if not any(_shows_both(source) for source in engine.sources):
        text = f"pool {pool.value:,} and context {context.value:,} are of two sources, which may be of two engines"
        if engine.role is Role.UNKNOWN:
            return undecided(f"{text}: say FILE=prefill, FILE=decode or FILE=single", pool, context)
        if not _declares_context(engine):
            return undecided(f"{text}, replicas of {engine.role}: give a source that shows both", pool, context)
    return None


def _bound_by_limit(engine: Engine, pool: IntFact, context: IntFact, deployment: Deployment) -> Outcome | None:
    """Decide by the limit that the engine itself reports, where that decides."""
    limit = engine.facts.effective_input_limit
    if isinstance(limit, Unknown) or not limit_is_evidence(engine):
        return None
    margin = margin_of(engine)
    if isinstance(context, Known) and limit.value < context.value - margin:
        shown = pool if isinstance(pool, Known) else Known(limit.value + margin, limit.origin)
        text = _arithmetic(engine, shown, context, deployment)
        return failed(text, limit, shown, context, fixes=_fixes(engine, deployment))
    if isinstance(context, Unknown) and isinstance(pool, Known) and limit.value == pool.value - margin:
        text = (
            f"the engine's own input limit is {limit.value:,} = pool {pool.value:,} - {margin}: the pool bounds what "
            f"it accepts, not the context. Prompts of {limit.value:,} tokens and more are refused here"
        )
        return failed(text, limit, pool, fixes=_fixes(engine, deployment))
    if isinstance(context, Known) and not isinstance(engine.facts.pool_tokens, Known):
        text = f"the engine's own input limit is {limit.value:,}, which the context of {context.value:,} bounds"
        return passed(text, limit, context)
    return None


def _refusal(engine: Engine) -> Outcome | None:
    """Take the engine's own refusal to start for what it says, where it gives no numbers."""
    for event in engine.facts.events:
        if event.name == "refused_to_start":
            said = Known(event.count, event.last)
            fix = Fix("Lower the context length, or free memory for the pool, until the engine starts")
            return failed("the engine refused to start: its pool does not hold one context", said, fixes=(fix,))
    return None


def _against_advertised(engine: Engine, pool: Known[int], deployment: Deployment) -> Outcome:
    """Compare with what clients are told: enough for a FAIL, never for a PASS."""
    for told in deployment.advertised:
        if pool.value < told.value:
            text = f"pool {pool.value:,}, while clients are told {told.value:,}; the engine's own context is not known"
            return failed(text, pool, told, fixes=_fixes(engine, deployment))
    return undecided("the engine's own context length is not known; what a gateway allows does not replace it", pool)


def _arithmetic(engine: Engine, pool: Known[int], context: Known[int], deployment: Deployment) -> str:
    margin = margin_of(engine)
    first = min(pool.value, context.value) - margin
    sum_ = f"min({context.value:,}, {pool.value:,}) - 1 - 5 = {first:,}" if margin else f"{first:,}"
    last, beyond = _last_dangerous(engine, context, deployment)
    text = (
        f"pool {pool.value:,} < context {context.value:,}: this engine accepts prompts below {sum_}. "
        f"Dangerous: prompts of {first:,} to {last:,} tokens, which clients may send and it refuses{beyond}"
    )
    return (
        text if engine.role is not Role.UNKNOWN else text + ". Its role is not known, and nothing proves a single node"
    )


def _last_dangerous(engine: Engine, context: Known[int], deployment: Deployment) -> tuple[int, str]:
    """Give the longest prompt that this engine refuses and the context, or the other half, lets in."""
    last = context.value - 1
    if engine.role is not Role.PREFILL:
        return last, ""
    limits = [limit.value for each in deployment.of_role(Role.DECODE) if isinstance(limit := input_limit(each), Known)]
    if not limits:
        return last, ""
    return min(last, max(limits) - 1), f" while decode, whose limit is {max(limits):,}, takes them"


def _declares_context(engine: Engine) -> bool:
    """Tell whether the context stands in a declaration, which holds for every replica."""
    kinds = {source.kind for source in engine.sources if isinstance(source.context_len, Known)}
    return bool(kinds) and kinds <= DECLARED_KINDS


def _shows_both(source: SourceFacts) -> bool:
    pools, contexts = (
        (source.pool_tokens, source.pool_tokens_estimated),
        (source.context_len, source.advertised_context),
    )
    return any(isinstance(pool, Known) for pool in pools) and any(isinstance(each, Known) for each in contexts)


def _limit_is_of_context(engine: Engine, context: Known[int]) -> bool:
    limit = engine.facts.effective_input_limit
    return isinstance(limit, Known) and limit.value >= context.value - margin_of(engine)


def _ranks_share_context(engine: Engine) -> bool:
    return isinstance(engine.facts.cp_size, Known) and engine.facts.cp_size.value > 1


def _fixes(engine: Engine, deployment: Deployment) -> tuple[Fix, ...]:
    context = context_of(engine)
    fits = fitting_context(deployment)
    lower = (lower_context(engine, fits),) if fits else ()
    return (*lower, enlarge_pool(engine, context.value)) if isinstance(context, Known) else lower


RULE = Rule(
    id="KVF0001",
    slug="pool-below-context",
    severity=Severity.CRITICAL,
    since="0.1.0",
    check=check,
    alerts=(
        Alert(
            "KvPoolBelowContext",
            "sglang:max_total_num_tokens <= sglang:context_len",
            "The KV pool of an SGLang engine does not hold one prompt of the context length",
        ),
    ),
)
