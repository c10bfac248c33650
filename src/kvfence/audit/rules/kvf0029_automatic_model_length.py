"""Each role chooses its own context length.

What it checks:
    `--max-model-len auto` (or -1) on an engine of a vLLM pair.

Why it matters:
    The length is then fitted to the memory of that process. Prefill and decode end with different limits, today or
    after the next change, and "Maximum concurrency 1.00x" says nothing any more.

Evidence:
    "Auto-fit max_model_len" in the log; the argument.

How to fix:
    State the same `--max-model-len` on both roles, the smaller of the two that were fitted.

References:
    vllm-project/vllm#54662; vllm-project/vllm-ascend#8893.
"""

from collections.abc import Iterator

from kvfence.audit.capacity import context_of, fitting_context
from kvfence.audit.deployment import Deployment, Engine
from kvfence.audit.judge import disaggregated, failed, passed, undecided
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule, Value
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Known, Unknown


def check(deployment: Deployment) -> Iterator[Outcome]:
    """Judge each engine."""
    lengths = [fact.value for each in deployment.engines if isinstance(fact := context_of(each), Known)]
    length = min(lengths, default=0) or fitting_context(deployment)

    def judge(engine: Engine) -> Outcome:
        return _judge(engine, length)

    yield from disaggregated(judge)(deployment)


def _judge(engine: Engine, length: int) -> Outcome:
    automatic = engine.facts.context_auto
    if isinstance(automatic, Unknown):
        return undecided(f"whether the length is fitted automatically is not known: {automatic.reason}")
    if not automatic.value:
        return passed("the length is stated", automatic)
    setting = f"--max-model-len {length}" if length else ""
    how = f"`{setting}`" if setting else "the same `--max-model-len`"
    changes: dict[str, Value] = {"context_auto": False}
    if length:
        changes["context_len"] = length
    fix = Fix(f"Start both roles with {how}", setting, changes=changes, forgets=("advertised_context",))
    return failed(
        "the engine fits its own context length, each role for itself", automatic, context_of(engine), fixes=(fix,)
    )


RULE = Rule(
    id="KVF0029",
    slug="automatic-model-length",
    severity=Severity.HIGH,
    engines=(EngineRange("vllm"),),
    since="0.1.0",
    check=check,
)
