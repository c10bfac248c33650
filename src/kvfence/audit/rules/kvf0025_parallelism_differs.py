"""Prefill and decode split the model over a different number of ranks.

What it checks:
    Tensor, pipeline and context parallel sizes of both halves of a pair.

Why it matters:
    Pages must then be cut and joined on the way. Public reports name wrong answers where the sizes differ, and
    SGLang's checksum admits such requests unverified. Many deployments differ on purpose: the rule says what to test.

Evidence:
    `tp_size`, `pp_size` and the like in the server's arguments; rank prefixes.

How to fix:
    Equal sizes on both roles; where that cannot be, test answers under load, not status codes.

References:
    sgl-project/sglang#23020, #39729; NVIDIA/TensorRT-LLM#6507.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.judge import each_pair, failed, passed, undecided
from kvfence.audit.rule import Fix, Outcome, Rule, Value
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import IntFact, Known, Unknown

_FLAGS = {
    "sglang": {"tp_size": "--tp-size", "pp_size": "--pp-size"},
    "vllm": {"tp_size": "--tensor-parallel-size", "pp_size": "--pipeline-parallel-size"},
}


def judge(prefill: Engine, decode: Engine) -> Outcome:
    """Compare the sizes, the sure differences first."""
    sizes = {
        "tp_size": (prefill.facts.tp_size, decode.facts.tp_size),
        "pp_size": (prefill.facts.pp_size, decode.facts.pp_size),
    }
    differing = {name: pair for name, pair in sizes.items() if _differ(*pair)}
    shown = [fact for pair in (differing or sizes).values() for fact in pair]
    if differing:
        text = "; ".join(f"{name}: {_value(a)} on prefill, {_value(b)} on decode" for name, (a, b) in differing.items())
        return failed(text, *shown, fixes=(_follow(decode, differing),))
    missing = [name for name, pair in sizes.items() if any(isinstance(fact, Unknown) for fact in pair)]
    if missing:
        return undecided(f"not known on both roles: {', '.join(missing)}", *shown)
    return passed("tensor and pipeline parallel sizes are equal", *shown)


def _differ(ours: IntFact, theirs: IntFact) -> bool:
    return isinstance(ours, Known) and isinstance(theirs, Known) and ours.value != theirs.value


def _value(fact: IntFact) -> int:
    return fact.value if isinstance(fact, Known) else 0


def _follow(decode: Engine, differing: dict[str, tuple[IntFact, IntFact]]) -> Fix:
    changes: dict[str, Value] = {name: _value(ours) for name, (ours, _) in differing.items()}
    flags = _FLAGS.get(decode.engine, {})
    setting = " ".join(f"{flags[name]} {value}" for name, value in changes.items() if name in flags)
    how = f"`{setting}`" if setting else "prefill's sizes"
    return Fix(f"Start decode with {how}, or compare answers of both layouts under load", setting, ("decode",), changes)


RULE = Rule(id="KVF0025", slug="parallelism-differs", severity=Severity.MEDIUM, since="0.1.0", check=each_pair(judge))
