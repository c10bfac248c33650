"""A model with several groups of KV caches is received over NIXL by a release that fails only one of them.

What it checks:
    vLLM with a NIXL connector and a hybrid model: from 0.31 a failed receive fails the request as a whole. Reported
    for 0.24 to 0.29.

Why it matters:
    The failure of one group is not applied to the others: decode goes on with stale blocks, HTTP 200, and the counter
    of failed transfers stays 0.

Evidence:
    Connector, version, and whether the model is hybrid (sliding-window or state-space layers beside full attention).

How to fix:
    Run 0.31 or later on both roles.

References:
    vllm-project/vllm#52234, #52276, #52232.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.detectors import uses_nixl
from kvfence.audit.judge import disaggregated, fixed_in, not_applicable, undecided
from kvfence.audit.rule import EngineRange, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown

_BY_RELEASE = fixed_in("0.31", "a failed receive is applied to one KV group of several, and decode goes on")


def judge(engine: Engine) -> Outcome:
    """Judge the release where connector and model are of the kind."""
    connector, hybrid = engine.facts.connector, engine.facts.hybrid_model
    nixl = uses_nixl(engine)
    if isinstance(nixl, Unknown):
        return undecided(nixl.reason)
    if not nixl.value:
        return not_applicable("the connector is not NIXL's", connector)
    if isinstance(hybrid, Unknown):
        return undecided(f"whether the model is hybrid is not known: {hybrid.reason}", connector)
    if not hybrid.value:
        return not_applicable("the model has one group of KV caches", hybrid)
    return _BY_RELEASE(engine)


RULE = Rule(
    id="KVF0031",
    slug="hybrid-model-with-nixl",
    severity=Severity.HIGH,
    engines=(EngineRange("vllm"),),
    since="0.1.0",
    check=disaggregated(judge),
)
