"""What a role reads of vLLM's configuration, and what it refuses to start with."""

from typing import Any

import pytest
from engines import caches_of, config_of

from kvfence.core.errors import SettingsError
from kvfence.guard.vllm.facts import facts_of, settings_of

KEY = {"KVFENCE_GUARD_KEY": "k" * 32}


def test_a_role_knows_its_sizes(vllm: Any) -> None:
    """Blocks, pool, context and layout come from vLLM."""
    facts = facts_of(config_of("decode", "e"), caches_of(32), "0.32.0+cpu")
    assert (facts.block_tokens, facts.pool_tokens, facts.context_tokens) == ((4,), 128, 64)
    assert facts.role == "decode"
    assert "2 x SimpleNamespace of 64 bytes a block of 4" in facts.layout


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"parallel": {"pipeline_parallel_size": 2}}, "pipeline_parallel_size 2"),
        ({"parallel": {"decode_context_parallel_size": 4}}, "decode_context_parallel_size 4"),
        ({"extra": {"bidirectional_kv_xfer": True}}, "bidirectional_kv_xfer"),
        ({"speculative": object()}, "speculative_config is not covered"),
        ({"device": "xpu"}, "no digest of blocks on xpu"),
        ({"device": "cuda", "permute": True}, "enable_permute_local_kv"),
    ],
)
def test_what_is_not_covered_is_refused_by_name(vllm: Any, more: dict[str, Any], says: str) -> None:
    """The engine does not start with it."""
    with pytest.raises(SettingsError, match=says):
        facts_of(config_of("decode", "e", **more), caches_of(32), "0.32.0")


def test_a_layout_names_the_digest_of_its_device(vllm: Any) -> None:
    """Two roles that digest differently have other layouts."""
    facts = [facts_of(config_of("decode", "e", device=kind), caches_of(32), "0.32.0") for kind in ("cpu", "cuda")]
    assert [each.digest for each in facts] == ["xxh3_128", "odd_sums_128"]
    assert all(each.layout.endswith(each.digest) for each in facts)


@pytest.mark.parametrize("version", ["0.32.0", "0.99.0"])
def test_a_release_without_a_point_is_refused_by_it(vllm: Any, version: str) -> None:
    """Known or not, what is not there is named."""
    from vllm.v1.core.block_pool import BlockPool

    kept = BlockPool.touch
    del BlockPool.touch
    try:
        with pytest.raises(SettingsError, match=r"has no vllm\.v1\.core\.block_pool\.BlockPool\.touch"):
            facts_of(config_of("decode", "e"), caches_of(32), version)
    finally:
        BlockPool.touch = kept  # type: ignore[method-assign]


def test_an_unknown_release_with_all_points_starts(vllm: Any) -> None:
    """Its hooks are there."""
    assert facts_of(config_of("decode", "e"), caches_of(32), "0.99.0").whole_receives


def test_a_hybrid_model_needs_a_release_that_fails_receives_whole(vllm: Any) -> None:
    """Where only blocks can be named, several groups are refused; one group is not."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlBaseConnector

    assert facts_of(config_of("decode", "e"), caches_of(32, groups=3), "0.32.0").block_tokens == (4, 4, 4)
    kept = NixlBaseConnector.get_transfer_results
    del NixlBaseConnector.get_transfer_results
    try:
        assert not facts_of(config_of("decode", "e"), caches_of(32), "0.29.0").whole_receives
        with pytest.raises(SettingsError, match="several KV cache groups"):
            facts_of(config_of("decode", "e"), caches_of(32, groups=3), "0.29.0")
    finally:
        NixlBaseConnector.get_transfer_results = kept  # type: ignore[method-assign]


def test_options_come_before_the_environment() -> None:
    """A mode on the command line counts."""
    config = config_of("decode", "e", extra={"kvfence_mode": "observe"})
    assert not settings_of(config, {**KEY, "KVFENCE_GUARD": "enforce"}).enforces


def test_a_secret_among_the_options_is_refused() -> None:
    """vLLM writes its options to its log."""
    config = config_of("decode", "e", extra={"kvfence_key": "k" * 32})
    with pytest.raises(SettingsError, match="kvfence_key: the guard's options"):
        settings_of(config, KEY)


def test_without_a_key_nothing_starts() -> None:
    """Unless that is asked for in words."""
    with pytest.raises(SettingsError, match="no key"):
        settings_of(config_of("decode", "e"), {})
    assert not settings_of(config_of("decode", "e", extra={"kvfence_insecure": "1"}), {}).key.is_secret
