"""The side channel of the KV transfer listens where others can reach it.

What it checks:
    The address of NIXL's side channel or of SGLang's bootstrap server: not every address, and not a public one.

Why it matters:
    The side channel is not authenticated. It tells peers where the memory of an engine is; whoever speaks it can read
    pages or stand in for a peer.

Evidence:
    VLLM_NIXL_SIDE_CHANNEL_HOST, the bootstrap host, SGLANG_HOST_IP, addresses in the log.

How to fix:
    Bind it to an address of a private network that only the workers are in.

References:
    vllm-project/vllm#47843; vLLM's documentation on security: KV transfer must be on an isolated network.
"""

import ipaddress

from kvfence.audit.deployment import Engine, Role
from kvfence.audit.judge import disaggregated, failed, not_applicable, passed, undecided
from kvfence.audit.rule import Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown


def judge(engine: Engine) -> Outcome:
    """Look at the address."""
    channel = engine.facts.side_channel
    if engine.engine == "sglang" and engine.role is Role.DECODE and isinstance(channel, Unknown):
        return not_applicable("SGLang's bootstrap server stands on prefill")
    if isinstance(channel, Unknown):
        return undecided(f"where the side channel listens is not known: {channel.reason}")
    try:
        address = ipaddress.ip_address(_host(channel.value))
    except ValueError:
        return undecided(f"whether {channel.value} is a private address is not known", channel)
    if address.is_unspecified:
        return failed("the side channel listens on every address", channel, fixes=(_private(engine),))
    if address.is_loopback or address.is_private or address.is_link_local:
        return passed(f"the side channel listens on {address}, a private address", channel)
    return failed(f"the side channel listens on {address}, a public address", channel, fixes=(_private(engine),))


def _host(text: str) -> str:
    """Give the host of ``host``, ``host:port``, ``[v6]:port`` or ``scheme://host:port``, also after a word."""
    bare = text.rpartition(" ")[2].rpartition("://")[2]
    if bare.startswith("["):
        return bare[1:].partition("]")[0]
    return bare.partition(":")[0] if bare.count(":") == 1 else bare


def _private(engine: Engine) -> Fix:
    variable = {"vllm": "VLLM_NIXL_SIDE_CHANNEL_HOST", "sglang": "SGLANG_HOST_IP"}.get(engine.engine, "")
    setting = f"{variable}=10.0.0.1" if variable else ""
    how = f", such as `{setting}`" if setting else ""
    return Fix(
        f"Bind the side channel to the worker's private address{how}", setting, changes={"side_channel": "10.0.0.1"}
    )


RULE = Rule(
    id="KVF0035",
    slug="side-channel-reachable",
    severity=Severity.HIGH,
    since="0.1.0",
    check=disaggregated(judge),
)
