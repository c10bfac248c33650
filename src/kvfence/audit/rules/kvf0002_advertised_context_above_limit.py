"""Clients are told of a longer context than the smallest engine holds.

What it checks:
    What clients read (`/v1/models`, a gateway's configuration, `--advertised`) against the smaller of context and
    pool of every engine. It is a third number beside pool and context.

Why it matters:
    Clients and gateways trust `max_model_len`. SGLang reports its context there, not its limit, so that an ordinary
    client sends the very prompts that only a refusal inside the engine can stop.

Evidence:
    `data[0].max_model_len` of `/v1/models`; router configuration; the caller's `--advertised`.

How to fix:
    Advertise no more than the smallest engine holds, and set the same number as context length on every role.

References:
    Post-mortem (2026-10-26), recommendation 1 and cause 1; sgl-project/sglang#1900, #29575.
"""

from collections.abc import Iterator

from msgspec import structs

from kvfence.audit.capacity import context_of, fitting_context, lower_context, pool_of
from kvfence.audit.deployment import Deployment, Engine, Role
from kvfence.audit.judge import SINGLE_IS_SAFE, failed, not_applicable, passed, undecided
from kvfence.audit.rule import Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Known


def check(deployment: Deployment) -> Iterator[Outcome]:
    """Judge each engine against the largest number that clients are told."""
    told = max(deployment.advertised, key=lambda fact: fact.value, default=None)
    for engine in deployment.engines:
        if engine.role is Role.SINGLE:
            outcome = not_applicable(SINGLE_IS_SAFE, engine.facts.role)
        elif told is None:
            outcome = undecided("what clients are told is not known: give a /v1/models URL or --advertised N")
        else:
            outcome = _judge(engine, told, deployment)
        yield structs.replace(outcome, subject=engine.name)


def _judge(engine: Engine, told: Known[int], deployment: Deployment) -> Outcome:
    known = [fact for fact in (pool_of(engine), context_of(engine)) if isinstance(fact, Known)]
    smallest = min(known, key=lambda fact: fact.value, default=None)
    if smallest is not None and told.value > smallest.value:
        text = f"clients are told {told.value:,} tokens, this engine holds {smallest.value:,}"
        return failed(text, told, smallest, fixes=_fixes(engine, deployment))
    if len(known) < 2:
        return undecided("pool and context of this engine are not both known", told)
    return passed(f"clients are told {told.value:,} tokens, which this engine holds", told, *known)


def _fixes(engine: Engine, deployment: Deployment) -> tuple[Fix, ...]:
    fits = fitting_context(deployment)
    fix = lower_context(engine, fits)
    return (structs.replace(fix, changes={**fix.changes, "advertised_context": fits}),)


RULE = Rule(id="KVF0002", slug="advertised-context-above-limit", severity=Severity.HIGH, since="0.1.0", check=check)
