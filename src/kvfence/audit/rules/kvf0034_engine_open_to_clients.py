"""An engine of a pair answers whoever reaches it, and takes hand-off parameters from clients.

What it checks:
    That a vLLM engine with a KV connector asks for an API key.

Why it matters:
    vLLM takes `kv_transfer_params` from any request. A client that reaches prefill or decode can name another
    request's blocks and be given them. A key on the engine keeps out whoever does not come through the router; that
    the router overwrites the field is a second thing, which no source shows.

Evidence:
    `--api-key` or VLLM_API_KEY in the command, the environment or a manifest.

How to fix:
    Set an API key on both roles that the router alone knows, bind them to a private network, and let the router remove
    `kv_transfer_params` from what clients send.

References:
    vllm-project/vllm#49796, #47843, #52234; vLLM's documentation on security: KV transfer is insecure by default.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.judge import disaggregated, failed, passed, undecided
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown


def judge(engine: Engine) -> Outcome:
    """Look for a key."""
    key = engine.facts.api_key_set
    if isinstance(key, Unknown):
        return undecided(f"whether an API key is asked for is not known: {key.reason}")
    if key.value:
        return passed("the engine asks for an API key; that the router removes kv_transfer_params is not shown", key)
    fix = Fix(
        "Start both roles with an API key that the router alone knows (VLLM_API_KEY), on a private network",
        "VLLM_API_KEY=...",
        changes={"api_key_set": True},
    )
    return failed("no API key: whoever reaches this port can send kv_transfer_params", key, fixes=(fix,))


RULE = Rule(
    id="KVF0034",
    slug="engine-open-to-clients",
    severity=Severity.HIGH,
    engines=(EngineRange("vllm"),),
    since="0.1.0",
    check=disaggregated(judge),
)
