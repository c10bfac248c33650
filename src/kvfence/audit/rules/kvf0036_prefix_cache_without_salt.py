"""Several tenants share one prefix cache without a salt.

What it checks:
    Where a prefix cache is on, that requests carry a cache salt; with `--single-tenant` there is nothing to divide.

Why it matters:
    A hit is faster than a miss: one tenant can ask whether another has sent a prefix. And a hash that collides, or a
    bad page that entered the cache, then reaches other tenants. vLLM seeds its hashes with a public constant: the
    salt is the only division.

Evidence:
    The prefix cache in the arguments, the log or the metrics; the router that adds the salt.

How to fix:
    Let the gateway set `cache_salt` from the authenticated tenant, never from the client, on both roles' requests; or
    switch the prefix cache off.

References:
    vllm-project/vllm#53347; sgl-project/sglang#9256; ai-dynamo/dynamo#8197; openvinotoolkit/openvino.genai#3722.
"""

from collections.abc import Iterator

from kvfence.audit.deployment import PREFIX_CACHE_OFF, Deployment, Engine
from kvfence.audit.judge import any_role, failed, not_applicable, passed, undecided
from kvfence.audit.rule import Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import TextFact, Unknown


def check(deployment: Deployment) -> Iterator[Outcome]:
    """Judge each engine, unless there is one tenant."""
    if deployment.single_tenant:
        yield not_applicable("all requests are one tenant's, as was said")
    else:
        yield from any_role(_judge)(deployment)


def is_on(prefix_cache: TextFact) -> bool | Unknown:
    """Tell whether prefixes are kept for other requests."""
    if isinstance(prefix_cache, Unknown):
        return Unknown(f"whether a prefix cache is on is not known: {prefix_cache.reason}")
    return prefix_cache.value.lower() not in PREFIX_CACHE_OFF


def _judge(engine: Engine) -> Outcome:
    cache, salt = engine.facts.prefix_cache, engine.facts.cache_salt
    on = is_on(cache)
    if isinstance(on, Unknown):
        return undecided(on.reason)
    if not on:
        return passed("no prefix cache", cache)
    if isinstance(salt, Unknown):
        return undecided(f"prefix cache on; whether requests carry a salt is not known: {salt.reason}", cache)
    if salt.value:
        return passed("requests carry a salt", salt, cache)
    flag = {"vllm": "--no-enable-prefix-caching", "sglang": "--disable-radix-cache"}.get(engine.engine, "")
    or_off = f", or start with `{flag}`" if flag else ""
    fix = Fix(f"Let the gateway add `cache_salt` per tenant{or_off}", flag, changes={"prefix_cache": "off"})
    return failed("a prefix cache without a salt: a tenant can ask what others sent", cache, salt, fixes=(fix,))


RULE = Rule(id="KVF0036", slug="prefix-cache-without-salt", severity=Severity.MEDIUM, since="0.1.0", check=check)
