"""What a checkpoint folder says before any weight is loaded, and which checkpoints are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvfence.core.errors import ModelError
from kvfence.models.checkpoint import read_facts, resolve_checkpoint
from kvfence.models.families import REFUSED, SUPPORTED, check_family
from kvfence.models.toy import EOS, write_toy_checkpoint


def quiet(_stage: str, _done: int, _total: int) -> None:
    """Take progress and say nothing."""


def test_facts_of_the_toy(tmp_path: Path) -> None:
    """Context, vocabulary and end tokens come from the two config files."""
    facts = read_facts(write_toy_checkpoint(tmp_path, context=128))
    assert (facts.family, facts.context_tokens, facts.eos_token_ids) == ("llama", 128, {EOS})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert read_facts(tmp_path).eos_token_ids == {2, 7}


def test_the_toy_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    """Tests in several processes make the same model; another seed makes another."""
    first, second, other = (
        (write_toy_checkpoint(tmp_path / name, seed=seed) / "model.safetensors").read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == second != other


def test_a_folder_is_itself_and_a_missing_one_is_named(tmp_path: Path) -> None:
    """A local path is never looked up on a hub."""
    assert resolve_checkpoint(str(tmp_path), quiet) == tmp_path
    with pytest.raises(ModelError, match="no such folder"):
        resolve_checkpoint(str(tmp_path / "missing"), quiet)


def test_an_id_that_the_hub_does_not_give_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without network a hub id is refused with what to check."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        resolve_checkpoint("nobody/nothing-at-all", quiet)


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_refused_families_are_named_with_their_reason(family: str) -> None:
    """Each family that cannot run wholly in pages is refused by its name and the reason."""
    assert family not in SUPPORTED
    with pytest.raises(ModelError) as caught:
        check_family({"model_type": family})
    assert repr(family) in str(caught.value)
    assert REFUSED[family] in str(caught.value)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "no model_type"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "not a decoder-only"),
        ({"model_type": "gemma3", "text_config": {}}, "multimodal"),
        ({"model_type": "unheard_of"}, "not among the families tested"),
        ({"model_type": "llama", "quantization_config": {"bits": 4}}, "quantized"),
        ({"model_type": "llama", "layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ({"model_type": "phi3", "rope_scaling": {"type": "longrope"}}, "longrope"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "dynamic"}}, "dynamic"),
        ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}, "dynamic"),
    ],
)
def test_what_does_not_fit_is_refused(config: dict[str, Any], reason: str) -> None:
    """Unknown families, and known ones with a feature that escapes the pages or depends on the batch, are refused."""
    with pytest.raises(ModelError, match=reason):
        check_family(config)


@pytest.mark.parametrize("rope", [None, {"rope_type": "llama3"}, {"rope_type": "yarn"}, {"type": "linear"}])
def test_static_rotary_scaling_is_fine(rope: dict[str, str] | None) -> None:
    """Rotary scaling that does not look at other sequences is accepted."""
    check_family({"model_type": "llama", "rope_scaling": rope})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "unreadable"),
        ("[]", "not a JSON object"),
        (json.dumps({"model_type": "llama"}), "must be numbers"),
        (
            json.dumps({"model_type": "llama", "max_position_embeddings": -5, "vocab_size": 9}),
            "must be numbers above 0",
        ),
    ],
)
def test_a_bad_config_is_named(text: str, message: str, tmp_path: Path) -> None:
    """A config.json that cannot be used is refused with its path."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=rf"config\.json.*{message}"):
        read_facts(tmp_path)


def test_an_end_of_text_that_is_no_token_id_is_named(tmp_path: Path) -> None:
    """A generation_config.json that cannot be used is refused as a model that is wrong, not as our fault."""
    write_toy_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": "x"}))
    with pytest.raises(ModelError, match="eos_token_id must be a token id"):
        read_facts(tmp_path)
