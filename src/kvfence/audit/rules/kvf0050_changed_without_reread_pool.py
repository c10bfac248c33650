"""Something that moves the pool was changed, and the pool was not read again.

What it checks:
    Against a saved baseline (`--baseline FILE`): where weights, quantisation, parallelism, memory fraction or CUDA
    graphs changed, that the pool was read again after the change.

Why it matters:
    Each of these takes memory from the pool or gives it back, in silence. The incident's pool was right for another
    set of weights.

Evidence:
    The facts of both audits; a reading with the same text and time as the baseline's is the old one.

How to fix:
    Start the engines with the change, audit the new start-up log or the live endpoint, and save a new baseline.

References:
    Post-mortem (2026-10-26), recommendation 1.
"""

from collections.abc import Iterator

from msgspec import structs

from kvfence.audit.deployment import DECLARED_KINDS, Deployment, Engine
from kvfence.audit.judge import failed, not_applicable, passed, undecided
from kvfence.audit.rule import Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Known

MOVES_THE_POOL = (
    "model", "quantisation", "dtype", "kv_dtype", "tp_size", "pp_size", "dp_size", "cp_size", "memory_fraction",
    "cuda_graph",
)  # fmt: skip


def check(deployment: Deployment) -> Iterator[Outcome]:
    """Compare each engine with the baseline's engine of the same role and rank."""
    if deployment.baseline is None:
        yield not_applicable("no baseline was given")
        return
    for engine in deployment.engines:
        before = [each for each in deployment.baseline if _is_same(each, engine)]
        if len(before) == 1:
            outcome = _judge(before[0], engine)
        else:
            outcome = undecided(f"the baseline has {len(before)} engines of this role and rank; one is needed")
        yield structs.replace(outcome, subject=engine.name)


def _is_same(before: Engine, now: Engine) -> bool:
    return before.role is now.role and _value(before, "dp_rank") == _value(now, "dp_rank")


def _judge(before: Engine, now: Engine) -> Outcome:
    changed = [field for field in MOVES_THE_POOL if _differs(before, now, field)]
    if not changed:
        lost = [field for field in MOVES_THE_POOL if _value(before, field) is not None and _value(now, field) is None]
        if lost:
            return undecided(f"no longer shown, so whether it changed is not known: {', '.join(lost)}")
        return passed("nothing that moves the pool has changed")
    shown = "; ".join(f"{field}: {_value(before, field)} -> {_value(now, field)}" for field in changed)
    facts = [fact for field in changed for fact in (getattr(before.facts, field), getattr(now.facts, field))]
    if _is_read_again(before, now):
        return passed(f"changed: {shown}; the pool was read again", *facts, now.facts.pool_tokens)
    fix = Fix("Restart with the change, audit the new start-up log, and save a new baseline")
    return failed(f"changed: {shown}; the pool was not read again", *facts, now.facts.pool_tokens, fixes=(fix,))


def _is_read_again(before: Engine, now: Engine) -> bool:
    old, new = before.facts.pool_tokens, now.facts.pool_tokens
    if not isinstance(new, Known) or all(source.kind in DECLARED_KINDS for source in now.sources):
        return False
    if not isinstance(old, Known) or old.value != new.value or now.has_kind("endpoint"):
        return True
    return (old.origin.at, old.origin.quote, old.origin.line) != (new.origin.at, new.origin.quote, new.origin.line)


def _differs(before: Engine, now: Engine, field: str) -> bool:
    old, new = _value(before, field), _value(now, field)
    return old is not None and new is not None and old != new


def _value(engine: Engine, field: str) -> object:
    fact = getattr(engine.facts, field)
    return fact.value if isinstance(fact, Known) else None


RULE = Rule(id="KVF0050", slug="changed-without-reread-pool", severity=Severity.HIGH, since="0.1.0", check=check)
