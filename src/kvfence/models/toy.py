"""A tiny random checkpoint with a tokenizer and chat template, loaded like any other. No torch.

Weights are spread so that greedy decoding wanders instead of repeating one token; its text is noise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvfence.models.bytelevel import byte_alphabet, save_bytelevel_tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = 2
MERGES = ("Ġ t", "h e", "i n", "a n", "Ġt he", "e r", "Ġ a", "o n", "Ġ Ġ", "ĠĠ ĠĠ")
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\nCall with <tool_call>name and arguments</tool_call>:"
    "{% for tool in tools %} {{ tool['function'] | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>{{ call['function'] | tojson }}</tool_call>{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, INNER = 64, 4, 2, 16, 3, 96


def write_toy_checkpoint(path: Path, *, context: int = 512, seed: int = 0) -> Path:
    """Write a random llama of about 0.1 M parameters and its tokenizer; the same for the same seed."""
    path.mkdir(parents=True, exist_ok=True)
    vocab = _write_tokenizer(path)
    config = _config(len(vocab), context)
    _write_json(path / "config.json", config)
    _write_json(path / "generation_config.json", {"bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": EOS})
    _write_weights(path, config, seed)
    return path


def _write_tokenizer(path: Path) -> dict[str, int]:
    merges = [(left, right) for left, right in (merge.split(" ") for merge in MERGES)]
    tokens = [*SPECIAL, *byte_alphabet(), *(left + right for left, right in merges)]
    vocab = {token: index for index, token in enumerate(tokens)}
    save_bytelevel_tokenizer(path / "tokenizer.json", vocab, merges, SPECIAL, split_digits=True)
    names = {"bos_token": SPECIAL[1], "eos_token": SPECIAL[EOS], "pad_token": SPECIAL[EOS]}
    _write_json(path / "tokenizer_config.json", {**names, "tokenizer_class": "PreTrainedTokenizerFast"})
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return vocab


def _config(vocab_size: int, context: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": EOS,
        "dtype": "float32",
    }


def _write_weights(path: Path, config: dict[str, Any], seed: int) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    draw = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Any:
        return (draw.standard_normal((rows, columns)) * 2.0 / np.sqrt(columns)).astype(np.float32)

    ones = np.ones(HIDDEN, np.float32)
    vocab = config["vocab_size"]
    weights = {
        "model.embed_tokens.weight": matrix(vocab, HIDDEN),
        "model.norm.weight": ones,
        "lm_head.weight": matrix(vocab, HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        weights[at + "input_layernorm.weight"] = ones
        weights[at + "post_attention_layernorm.weight"] = ones
        weights[at + "self_attn.q_proj.weight"] = matrix(HEADS * HEAD_DIM, HIDDEN)
        weights[at + "self_attn.k_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        weights[at + "self_attn.v_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        weights[at + "self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD_DIM)
        weights[at + "mlp.gate_proj.weight"] = matrix(INNER, HIDDEN)
        weights[at + "mlp.up_proj.weight"] = matrix(INNER, HIDDEN)
        weights[at + "mlp.down_proj.weight"] = matrix(HIDDEN, INNER)
    save_file(weights, str(path / "model.safetensors"), metadata={"format": "pt"})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
