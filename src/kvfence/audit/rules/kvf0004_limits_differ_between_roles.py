"""Prefill and decode accept prompts of different length.

What it checks:
    For each pair: the prompt length from which on each half refuses. Each server computes its own limit from its own
    pool and context; the hand-shake of neither SGLang nor vLLM compares them.

Why it matters:
    A prompt that one half takes and the other refuses is the one case in which a hand-off starts that nobody can
    finish. With prefill's limit the smaller one, decode reserves pages for a prompt that prefill refuses: stale pages
    are read in SGLang before 0.5.20, and the client waits for the time-out in later ones.

Evidence:
    `max_req_input_len` of `/server_info`, or pool and context of both roles; vLLM: the model length of both.

How to fix:
    The same context length on both roles, below the smaller pool. Then both refuse the same prompts.

References:
    sgl-project/sglang#30233, #35421, #30325; vllm-project/vllm-ascend#8893; post-mortem (2026-10-26), cause 2.
"""

from collections.abc import Iterator

from msgspec import structs

from kvfence.audit.capacity import fitting_context, input_limit, lower_context
from kvfence.audit.deployment import Deployment, Engine
from kvfence.audit.judge import each_pair, failed, passed, undecided
from kvfence.audit.rule import Alert, EngineRange, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown


def check(deployment: Deployment) -> Iterator[Outcome]:
    """Compare the limits of each pair."""
    fits = fitting_context(deployment)

    def judge(prefill: Engine, decode: Engine) -> Outcome:
        return _judge(prefill, decode, fits)

    yield from each_pair(judge)(deployment)


def _judge(prefill: Engine, decode: Engine, fits: int) -> Outcome:
    first, second = input_limit(prefill), input_limit(decode)
    if isinstance(first, Unknown):
        return undecided(f"the input limit of prefill is not known: {first.reason}", second)
    if isinstance(second, Unknown):
        return undecided(f"the input limit of decode is not known: {second.reason}", first)
    if first.value == second.value:
        return passed(f"both refuse prompts of {first.value:,} tokens and more", first, second)
    low, high = sorted((first.value, second.value))
    who = "prefill refuses and decode takes" if first.value < second.value else "prefill takes and decode refuses"
    text = f"prefill's limit is {first.value:,}, decode's {second.value:,}"
    text = f"{text}: {who} prompts of {low:,} to {high - 1:,} tokens"
    severity = None if first.value < second.value else Severity.MEDIUM
    fix = structs.replace(lower_context(prefill, fits), text=f"Set the same context length, {fits:,}, on both roles")
    return failed(text, first, second, fixes=(fix,), severity=severity)


RULE = Rule(
    id="KVF0004",
    slug="limits-differ-between-roles",
    severity=Severity.HIGH,
    engines=(EngineRange("sglang"), EngineRange("vllm")),
    since="0.1.0",
    check=check,
    alerts=(
        Alert(
            "KvPrefillPoolBelowDecodePool",
            'min by (model_name) (sglang:max_total_num_tokens{engine_type="prefill"})'
            ' < max by (model_name) (sglang:max_total_num_tokens{engine_type="decode"})'
            ' and min by (model_name) (sglang:max_total_num_tokens{engine_type="prefill"})'
            " <= max by (model_name) (sglang:context_len)",
            "Decode accepts prompts that prefill refuses",
        ),
    ),
)
