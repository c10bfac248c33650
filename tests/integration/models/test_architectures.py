"""Every supported family: a tiny random model gives ``generate``'s tokens through pages.

``python -m tests.integration.models.test_architectures`` writes the table in ``docs/architectures.md`` anew.
"""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kvfence.core.errors import ModelError
from kvfence.models.families import SUPPORTED
from kvfence.models.transformer import ExecutorSpec, TransformerExecutor, load_executor
from tests.paged_runner import Sequences, random_prompts, reference

WINDOW = 6
COMMON: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
HEADS: dict[str, Any] = {"head_dim": 16}
SLIDING: dict[str, Any] = {"sliding_window": WINDOW}
MIXED: dict[str, Any] = {**SLIDING, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "num_local_experts": 4,
}  # fmt: skip
ROUTED: dict[str, Any] = {
    "moe_intermediate_size": 32, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "num_experts_per_tok": 2,
}  # fmt: skip
LATENT: dict[str, Any] = {
    **ROUTED, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "num_key_value_heads": 4,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": SLIDING, "mixtral": {**EXPERTS, **SLIDING}, "qwen2": {}, "qwen3": HEADS,
    "qwen3_moe": {**HEADS, **EXPERTS}, "gemma": HEADS, "gemma2": {**HEADS, **SLIDING},
    "gemma3_text": {**HEADS, **MIXED}, "phi": {}, "phi3": SLIDING, "olmo2": {}, "olmo3": MIXED, "olmoe": EXPERTS,
    "gpt_oss": {**HEADS, **SLIDING, **EXPERTS}, "glm": HEADS, "glm4": HEADS, "glm4_moe": {**HEADS, **ROUTED},
    "deepseek_v2": LATENT, "deepseek_v3": LATENT, "granite": {}, "cohere2": MIXED, "smollm3": {}, "stablelm": {},
    "starcoder2": SLIDING, "exaone4": MIXED, "seed_oss": HEADS, "ernie4_5": {}, "hunyuan_v1_dense": HEADS,
    "minimax_m2": {**HEADS, **EXPERTS}, "gpt2": {}, "gpt_neox": {}, "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
}  # fmt: skip


def save_tiny(folder: Path, family: str, options: dict[str, Any]) -> Any:
    """Save a tiny random model of a family with spread logits, and give it back."""
    config = transformers.AutoConfig.for_model(family, **{**COMMON, **options})
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    model.save_pretrained(folder)
    return model


PAGE = Path(__file__).parents[3] / "docs" / "architectures.md"
BEGIN, END = "<!-- table -->\n", "<!-- /table -->"


def row(family: str, executor: TransformerExecutor) -> str:
    """What the tested model of a family has, as its one-token dry run and its weights show it: a line of the table."""
    probed = executor._probed
    windows = {probe.window for probe in probed}
    reach = "all" if windows == {0} else "window" if 0 not in windows else "window in some layers"
    held = "K and V" if probed[0].direct else "latents"
    sizes = " + ".join(f"{shape[0]} x {shape[1]}" for shape in (probed[0].key_shape, probed[0].value_shape))
    marks = {
        "experts": any(parameter.dim() == 3 for parameter in executor._model.parameters()),
        "sinks": any(probe.sinks for probe in probed),
        "soft cap": any(probe.softcap for probe in probed),
    }
    return f"| `{family}` | {reach} | {held} | {sizes} | {', '.join(name for name, here in marks.items() if here)} |"


def write_page() -> None:
    """Make every family's model and write the table anew."""
    rows = []
    for family in sorted(FAMILIES):
        with tempfile.TemporaryDirectory() as folder:
            save_tiny(Path(folder), family, FAMILIES[family])
            executor = load_executor(Path(folder), ExecutorSpec(page_size=4, dtype="float32", device="cpu"))
            rows.append(row(family, executor))
    before, _, rest = PAGE.read_text().partition(BEGIN)
    head = "| family | attends to | kept in pages | heads x size, key + value | and |\n|---|---|---|---|---|\n"
    PAGE.write_text(before + BEGIN + head + "\n".join(rows) + "\n" + END + rest.partition(END)[2])


def test_every_supported_family_is_tested() -> None:
    """The list of supported families is the list tested here and the list in the docs, no more and no less."""
    assert set(FAMILIES) == SUPPORTED
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in lines] == sorted(SUPPORTED)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_family_equals_generate(family: str, tmp_path: Path) -> None:
    """Ragged prompts, longer than any window, give generate's greedy tokens: whole, in chunks, without kernels."""
    model = save_tiny(tmp_path, family, FAMILIES[family])
    prompts = random_prompts([3, 9, 14, 5], COMMON["vocab_size"])
    expected = reference(model, prompts, 8)
    executor = load_executor(tmp_path, ExecutorSpec(page_size=4, dtype="float32", device="cpu"))
    assert row(family, executor) in PAGE.read_text().splitlines(), "stale: write docs/architectures.md anew"
    assert Sequences(executor, 64).generate(prompts, 8) == expected
    assert Sequences(executor, 64, seed=1).generate(prompts, 8, chunk=4, concurrency=3) == expected
    plain = load_executor(tmp_path, ExecutorSpec(page_size=4, dtype="float32", device="cpu", kernels=False))
    assert Sequences(plain, 64).generate(prompts, 8, chunk=7, concurrency=3) == expected


REFUSED_HERE = ["falcon", "bloom", "gptj", "qwen3_next", "deepseek_v32", "glm_moe_dsa", "lfm2", "mamba", "gemma3n_text"]


@pytest.mark.parametrize("family", [*REFUSED_HERE, "t5", "no_such_family"])
def test_other_families_are_refused_by_name(family: str, tmp_path: Path) -> None:
    """A family that is not supported is refused by its name before any weight is read."""
    (tmp_path / "config.json").write_text(f'{{"model_type": "{family}", "vocab_size": 9, "n_ctx": 8}}')
    with pytest.raises(ModelError, match=f"'{family}' is refused"):
        load_executor(tmp_path, ExecutorSpec())


if __name__ == "__main__":
    write_page()
