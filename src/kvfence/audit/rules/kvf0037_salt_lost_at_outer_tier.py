"""The salt that divides tenants ends at an outer cache.

What it checks:
    An outer tier or connector that is reported to drop the cache salt: LMCache, and vLLM's ExampleConnector (formerly
    SharedStorageConnector).

Why it matters:
    The engine divides tenants, the tier behind it does not: tenant B is served the prefix of tenant A, out of a store
    that is keyed by the tokens alone.

Evidence:
    The connector, the outer cache in the arguments or the log.

How to fix:
    Leave the tier away for several tenants, or give each tenant its own; test with a paired positive control.

References:
    sgl-project/sglang#37160; LMCache/LMCache#4825, #2878, #2880, #3008; vllm-project/vllm#53495.
"""

from collections.abc import Iterator

from kvfence.audit.deployment import Deployment, Engine
from kvfence.audit.judge import any_role, failed, not_applicable, passed, undecided
from kvfence.audit.rule import Fix, Outcome, Rule, Value
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Known, Unknown

_DROPS = ("lmcache", "exampleconnector", "sharedstorageconnector")
_NONE = frozenset({"", "none", "off"})


def check(deployment: Deployment) -> Iterator[Outcome]:
    """Judge each engine, unless there is one tenant."""
    if deployment.single_tenant:
        yield not_applicable("all requests are one tenant's, as was said")
    else:
        yield from any_role(_judge)(deployment)


def _judge(engine: Engine) -> Outcome:
    outer, connector = engine.facts.outer_cache, engine.facts.connector
    for fact in (outer, connector):
        if isinstance(fact, Known) and any(name in fact.value.lower() for name in _DROPS):
            changes: dict[str, Value] = {"outer_cache": "none"}
            if isinstance(connector, Known):
                changes["connector"] = "NixlConnector"
            fix = Fix("Run without it where several tenants are served, or give each tenant its own", changes=changes)
            return failed(f"{fact.value} is reported to drop the salt", fact, fixes=(fix,))
    if isinstance(outer, Unknown):
        return undecided(f"whether there is an outer cache is not known: {outer.reason}", connector)
    if outer.value.lower() in _NONE:
        return passed("no outer cache", outer)
    return undecided(f"whether {outer.value} keeps the salt is not known", outer)


RULE = Rule(id="KVF0037", slug="salt-lost-at-outer-tier", severity=Severity.HIGH, since="0.1.0", check=check)
