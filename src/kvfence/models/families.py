"""Which model families run in pages, and which are refused by name, as data.

A family is supported when a tiny random model of it gave the same greedy tokens as transformers' ``generate``
(``tests/integration/models/test_architectures.py``). All others are refused: a model that keeps state outside the pages
would be served without a fence around that state. No torch at import.
"""

from collections.abc import Mapping
from typing import Any

from kvfence.core.errors import ModelError

SUPPORTED = frozenset(
    {
        "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "phi", "phi3",
        "olmo2", "olmo3", "olmoe", "gpt_oss", "glm", "glm4", "glm4_moe", "deepseek_v2", "deepseek_v3", "granite",
        "cohere2", "smollm3", "stablelm", "starcoder2", "exaone4", "seed_oss", "ernie4_5", "hunyuan_v1_dense",
        "minimax_m2", "gpt2", "gpt_neox", "opt",
    }
)  # fmt: skip
"""``model_type`` of every supported family; all of them are tested."""

_INDEXER = "its sparse attention keeps an index of keys beside K and V"
_RECURRENT = "its layers keep recurrent or convolution state that is not K and V per token"
_POSITIONAL = "it adds position biases to attention outside the attention interface"
_CHUNKED = "its chunked attention is expressed by a mask alone"

REFUSED: Mapping[str, str] = {
    "deepseek_v32": _INDEXER, "deepseek_v4": _INDEXER, "glm_moe_dsa": _INDEXER,
    "qwen3_next": _RECURRENT, "qwen3_5": _RECURRENT, "qwen3_5_text": _RECURRENT, "qwen3_5_moe": _RECURRENT,
    "kimi_linear": _RECURRENT, "mamba": _RECURRENT, "mamba2": _RECURRENT, "falcon_mamba": _RECURRENT,
    "falcon_h1": _RECURRENT, "jamba": _RECURRENT, "bamba": _RECURRENT, "zamba": _RECURRENT, "zamba2": _RECURRENT,
    "nemotron_h": _RECURRENT, "granitemoehybrid": _RECURRENT, "rwkv": _RECURRENT, "recurrent_gemma": _RECURRENT,
    "minimax": _RECURRENT, "xlstm": _RECURRENT, "olmo_hybrid": _RECURRENT,
    "lfm2": _RECURRENT, "lfm2_moe": _RECURRENT,
    "falcon": _POSITIONAL, "bloom": _POSITIONAL, "mpt": _POSITIONAL, "gptj": _POSITIONAL, "codegen": _POSITIONAL,
    "llama4": _CHUNKED, "llama4_text": _CHUNKED,
    "gemma3n": "its layers share K and V between them", "gemma3n_text": "its layers share K and V between them",
    "gemma4": "its layers share K and V between them", "gemma4_text": "its layers share K and V between them",
}  # fmt: skip
"""Families known not to fit, with the reason; everything else that is not supported is merely untested."""

STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn", "proportional"})
"""Rotary scalings that do not depend on the lengths of the other sequences in a batch."""

LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


def check_family(config: Mapping[str, Any]) -> None:
    """Refuse a checkpoint, by its config.json, that would not run wholly in pages.

    Raises:
        ModelError: names the family and the reason.
    """
    family = str(config.get("model_type", "")) or "(no model_type)"
    problem = _family_problem(family, config) or _shape_problem(config)
    if problem:
        raise ModelError(
            f"model family {family!r} is refused: {problem}. Supported families: {', '.join(sorted(SUPPORTED))}."
        )


def _family_problem(family: str, config: Mapping[str, Any]) -> str:
    if family in REFUSED:
        return REFUSED[family]
    if config.get("is_encoder_decoder"):
        return "it is not a decoder-only model"
    if "text_config" in config or "vision_config" in config:
        return "it is multimodal; its text-only checkpoint may work"
    if family not in SUPPORTED:
        return "it is not among the families tested to give equal tokens"
    return ""


def _shape_problem(config: Mapping[str, Any]) -> str:
    if config.get("quantization_config"):
        return "its weights are quantized; use an unquantized checkpoint"
    kinds = set(config.get("layer_types") or ()) - LAYER_TYPES
    if kinds:
        return f"it has layers of type {', '.join(sorted(map(str, kinds)))}"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for each in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        kind = str(each.get("rope_type", each.get("type", "default")))
        if kind not in STATIC_ROPE:
            return f"its {kind!r} rotary scaling depends on the longest sequence of a batch"
    return ""
