"""One transfer batch may be as large as the prompt.

What it checks:
    SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES of an SGLang pair with Mooncake: above 0. It came in 0.5.20, and its
    default, 0, means unbounded through 0.5.23.

Why it matters:
    A batch that has been posted cannot be called back. When it times out, all of its pages may still be written; the
    bound is how many. It makes no timed release safe by itself.

Evidence:
    The variable in a manifest, a command or a log; the version's documented default.

How to fix:
    Set the variable on every role; 64 page indices is a small batch, a few thousand a large one.

References:
    Post-mortem (2026-10-26), recommendation 3; sgl-project/sglang#38961.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.judge import disaggregated, failed, not_applicable, passed, undecided
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule, Value
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Known, Unknown
from kvfence.evidence.versions import at_least

VARIABLE = "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES"
PROPOSED = 64


def judge(engine: Engine) -> Outcome:
    """Look at the bound, then at whether the release knows it."""
    backend, bound, release = engine.facts.transfer_backend, engine.facts.batch_indices_max, engine.release
    if isinstance(backend, Known) and not backend.value.lower().startswith("mooncake"):
        return not_applicable(f"the bound is Mooncake's, the backend is {backend.value}", backend)
    if isinstance(release, Known) and at_least(release.value, "0.5.20") is False:
        return failed(f"SGLang {release.value} knows no bound on a batch", release, fixes=(_bounded("0.5.22"),))
    if isinstance(bound, Unknown):
        return undecided(f"the bound on a batch is not known: {bound.reason}", release)
    if bound.value > 0:
        return passed(f"at most {bound.value} page indices a batch", bound)
    whose = f" (the default of {bound.default_of})" if bound.default_of else ""
    return failed(f"a batch is unbounded{whose}", bound, fixes=(_bounded(""),))


def _bounded(version: str) -> Fix:
    setting = f"{VARIABLE}={PROPOSED}"
    first = f"Run SGLang {version} or later and set" if version else "Set"
    changes: dict[str, Value] = {"batch_indices_max": PROPOSED}
    return Fix(
        f"{first} `{setting}` on every role", setting, changes=changes | ({"version": version} if version else {})
    )


RULE = Rule(
    id="KVF0014",
    slug="transfer-batch-unbounded",
    severity=Severity.MEDIUM,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=disaggregated(judge),
)
