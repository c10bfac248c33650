"""Turn a llama GGUF file into a Hugging Face checkpoint folder, once, in bfloat16.

Only what the embedded model needs: llama tensors and a byte-level BPE vocabulary. Not for: other architectures.
Source: the GGUF tensor names and the permutation of q and k rows as llama.cpp's converter writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from kvfence.core.errors import ModelError
from kvfence.models.bytelevel import save_bytelevel_tokenizer

OUTER_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3


def convert_gguf(source: Path, target: Path, progress: Callable[[int, int], None]) -> None:
    """Write config, weights, tokenizer and chat template of a GGUF file into an existing folder.

    Raises:
        ModelError: the file is no llama GGUF with a byte-level BPE vocabulary.
    """
    import gguf

    reader: Any = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama" or fields.get("tokenizer.ggml.model") != "gpt2":
        raise ModelError(f"{source.name}: not a llama GGUF with a byte-level BPE vocabulary.")
    names = {tensor.name for tensor in reader.tensors}
    _write_json(target / "config.json", _config(fields, "output.weight" not in names))
    _write_tokenizer(target, fields)
    _write_weights(target / "model.safetensors", reader, fields, progress)


def tensor_name(name: str) -> str:
    """Give the Hugging Face name of a GGUF tensor."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    return f"{OUTER_NAMES[parts[0]]}.{parts[1]}"


def unpermute(weight: Any, num_heads: int) -> Any:
    """Undo the interleaving of rotary halves. Shapes: [num_heads * head_dim, columns] -> the same."""
    halves = weight.reshape(num_heads, weight.shape[0] // num_heads // 2, 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def round_to_bfloat16(values: Any) -> Any:
    """Round float32 to the nearest bfloat16, ties to even. Shapes: any -> the same, as uint16 bit patterns."""
    import numpy as np

    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _config(fields: dict[str, Any], tied: bool) -> dict[str, Any]:
    heads, hidden = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_parameters": {"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        "tie_word_embeddings": tied,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "dtype": "bfloat16",
    }


def _write_tokenizer(target: Path, fields: dict[str, Any]) -> None:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds = fields["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in fields["tokenizer.ggml.merges"])]
    vocab = {token: index for index, token in enumerate(tokens)}
    digits = fields["tokenizer.ggml.pre"] == "smollm"
    save_bytelevel_tokenizer(target / "tokenizer.json", vocab, merges, special, split_digits=digits)
    ids = {name: fields[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos", "padding")}
    names = {"bos_token": tokens[ids["bos"]], "eos_token": tokens[ids["eos"]], "pad_token": tokens[ids["padding"]]}
    _write_json(target / "tokenizer_config.json", {**names, "tokenizer_class": "PreTrainedTokenizerFast"})
    generation = {"bos_token_id": ids["bos"], "eos_token_id": ids["eos"], "pad_token_id": ids["padding"]}
    _write_json(target / "generation_config.json", generation)
    (target / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], encoding="utf-8")


def _write_weights(path: Path, reader: Any, fields: dict[str, Any], progress: Callable[[int, int], None]) -> None:
    """Write a safetensors file tensor by tensor: header length, JSON header, bytes in the header's order."""
    import gguf

    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    with path.open("wb") as file:
        file.write(_header(reader.tensors))
        total = sum(int(tensor.n_bytes) for tensor in reader.tensors)
        done = 0
        for tensor in reader.tensors:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
            if kind in heads:
                values = unpermute(values, heads[kind])
            file.write(round_to_bfloat16(values).tobytes())
            done += int(tensor.n_bytes)
            progress(done, total)


def _header(tensors: list[Any]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        end = at + 2 * prod(shape)
        header[tensor_name(tensor.name)] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
