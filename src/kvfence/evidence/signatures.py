"""The run-time signatures that a log or a metric can show, each with what it means.

The names are fixed: rules, reports and the facts document use them.
"""

SIGNATURES: dict[str, str] = {
    "kv_checksum_mismatch": "received KV pages are not the ones that prefill sent",
    "context_corruption": "a hand-off's metadata belongs to another request",
    "kv_canary_violation": "a KV slot holds another token than its page table says",
    "stale_reference_decoded": "an answer was decoded from pages of an earlier request",
    "prompt_tokens_1_beside_long": "prefill ran one token of a long prompt: a placeholder was handed off",
    "exceeds_then_200": "a prompt over the limit was answered with HTTP 200",
    "memory_leak_double_free": "more free tokens than the pool has: pages were freed twice and may have two owners",
    "nixl_read_after_expiry": "decode read pages after prefill's lease on them had ended",
    "storeContextBlocks_missing_sequence": "blocks were stored for a sequence that was already gone",
    "invalid_free": "a block was freed by a session that does not own it",
    "deferred_release_timeout": "pages went back to the pool without proof that the remote write had stopped",
    "kv_checksum_skipped": "hand-offs are decoded without their checksum being compared",
    "kv_checksum_buffers_differ": "one side only has the checksum: it is not compared",
    "kv_load_failure": "a KV receive failed",
    "nixl_transfer_failure": "a NIXL transfer failed",
    "transfer_failed": "a KV transfer failed",
    "sync_batch_timeout": "a synchronous transfer batch ran into its time-out",
    "expired_blocks_released": "prefill released blocks that decode had not fetched",
    "generationless_ack": "prefill and decode run different versions: drain acknowledgements are ignored",
    "memory_leak": "free tokens and the pool's size do not add up",
    "prompt_auto_truncated": "a prompt was cut to the engine's own limit",
    "refused_to_start": "the engine refused to start: the pool does not hold one context",
    "input_exceeds_limit": "a prompt was longer than the engine's limit",
    "canary_attached": "the KV canary is live on this pool",
}
"""In the order of gravity: the first of those seen is the one that a summary names."""


def gravest(names: set[str]) -> str | None:
    """The gravest of the signatures that were seen, or None."""
    return next((name for name in SIGNATURES if name in names), None)
