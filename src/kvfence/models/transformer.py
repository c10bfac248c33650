"""A Hugging Face causal LM as an ``Executor``: continuous batching over pages it does not own.

The page layout comes from a one-token dry run at load. Ids are packed as [1, tokens] with explicit positions, no
mask is built, and only wanted rows reach the LM head. CUDA goes the same way; that has not been run on a device.

Not for: which pages (``runtime``), K and V in pages (``attention.py``), which families (``families.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from msgspec import Struct
from torch import Tensor, nn

from kvfence.core.errors import ModelError
from kvfence.core.invariant import require
from kvfence.core.layout import KVLayout, Segment
from kvfence.models.attention import ATTENTION_NAME, LayerProbe, LayoutProbe, PoolCache, attach, register_attention
from kvfence.models.checkpoint import CheckpointFacts, read_facts
from kvfence.models.executor import PassRow
from kvfence.models.linear import has_fast_bfloat16, has_wide_vectors, pack_linears, widen_linears
from kvfence.models.native import Kernels, load_kernels
from kvfence.models.plan import PassPlan
from kvfence.models.sampling import sample

KNOWN_EXTRAS = frozenset(
    {"dropout", "is_causal", "output_router_logits", "position_embeddings", "position_ids", "use_cache"}
)
"""Arguments that models pass to attention and that change nothing here; any other is refused at load."""


class ExecutorSpec(Struct, frozen=True):
    """How to load a checkpoint.

    Units:
        dtype: auto is bfloat16 where the CPU or GPU computes it natively, else float32. threads: 0 leaves torch's.
        kernels: build and use those of ``kernels.c`` where there is a compiler.
    """

    page_size: int = 16
    dtype: str = "auto"
    device: str = "auto"
    threads: int = 0
    kernels: bool = True


class TransformerExecutor:
    """One loaded model; implements ``Executor``.

    Owner:
        The pool belongs to whoever called ``bind``; the weights and the pass in progress are this object's.
    """

    def __init__(
        self, model: nn.Module, facts: CheckpointFacts, page_size: int, kernels: Kernels | None = None
    ) -> None:
        self._model, self._facts, self._kernels = model, facts, kernels
        self._device = next(model.parameters()).device
        self._probed = _probe(model, facts)
        self.layout = _layout(self._probed, page_size)
        self._cache: PoolCache | None = None

    @property
    def context_tokens(self) -> int:
        """The longest sequence the model was made for."""
        return self._facts.context_tokens

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._facts.vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a sequence."""
        return self._facts.eos_token_ids

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters and buffers, shared ones once."""
        held = {t.data_ptr(): t.nbytes for t in [*self._model.parameters(), *self._model.buffers()]}
        return sum(held.values())

    def bind(self, views: list[Tensor]) -> None:
        """Take the pool's views, one per layout segment."""
        require(len(views) == len(self.layout.segments), "one view per segment")
        for view, segment in zip(views, self.layout.segments, strict=True):
            require(tuple(view.shape[1:]) == (self.layout.page_size, *segment.shape), "a view has its segment's shape")
        self._cache = PoolCache(views, [probe.direct for probe in self._probed], self._kernels)
        attach(self._model, self._cache)

    @torch.inference_mode()
    def run(self, rows: Sequence[PassRow]) -> list[int | None]:
        """Run one forward pass; see ``Executor.run``."""
        require(self._cache is not None, "bind comes before run")
        if not rows:
            return []
        cache: PoolCache = self._cache  # type: ignore[assignment]
        plan = PassPlan(rows, self.layout.page_size, self._device)
        require(int(plan.input_ids.max()) < self.vocab_size, "token ids are below vocab_size")
        cache.plan = plan
        try:
            logits = _forward(self._model, cache, plan.input_ids, plan.positions, plan.logit_tokens)
        finally:
            cache.plan = None
        out: list[int | None] = [None] * len(rows)
        if plan.sampled:
            params = [params for i in plan.sampled if (params := rows[i].sampling) is not None]
            samplers = [rows[i].sampler for i in plan.sampled]
            tokens = sample(logits, params, [rows[i].sample_index for i in plan.sampled], samplers)
            for i, token in zip(plan.sampled, tokens, strict=True):
                out[i] = token
        return out


def load_executor(path: Path, spec: ExecutorSpec) -> TransformerExecutor:
    """Load a checkpoint folder and find its page layout.

    Raises:
        ModelError: the checkpoint is unreadable or corrupt, or its family does not run in pages.
    """
    facts = read_facts(path)
    if spec.threads:
        torch.set_num_threads(spec.threads)
    device = _device(spec.device)
    dtype = _dtype(spec.dtype, device)
    register_attention()
    transformers.logging.disable_progress_bar()
    try:
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, local_files_only=True, output_loading_info=True
        )
        model.set_attn_implementation(ATTENTION_NAME)
    except Exception as error:  # transformers, its validation and the readers of weights share no root
        raise ModelError(
            f"{path}: the model does not load ({type(error).__name__}: {error}). The files may be incomplete or "
            "corrupt; fetch the checkpoint again."
        ) from error
    if missing := sorted(found["missing_keys"]):
        raise ModelError(f"{path}: {len(missing)} weights are missing, {missing[0]} among them. Fetch it again.")
    model = model.eval().to(device)
    kernels = load_kernels() if spec.kernels and device.type == "cpu" else None
    _mend_linears(model, dtype, device, kernels)
    return TransformerExecutor(model, facts, spec.page_size, kernels)


def _mend_linears(model: nn.Module, dtype: torch.dtype, device: torch.device, kernels: Kernels | None) -> None:
    """Take the quickest way this machine has to multiply by weights."""
    if device.type != "cpu" or (dtype is torch.bfloat16 and has_fast_bfloat16()):
        return
    if kernels is not None and not has_wide_vectors():
        pack_linears(model, kernels)
    elif dtype is torch.bfloat16:
        widen_linears(model)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError("model.device is cuda, but torch sees no CUDA device; use cpu or auto.")
    return torch.device(name)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" or has_fast_bfloat16() else "float32"
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}.get(name)
    if dtype is None:
        raise ModelError(f"model.dtype {name!r} is none of auto, float32, bfloat16.")
    return dtype


def _forward(
    model: Any, cache: PoolCache | LayoutProbe, input_ids: Tensor, positions: Tensor, logit_tokens: Tensor
) -> Tensor:
    """Give logits of the wanted tokens. Shapes: [1, tokens] twice, [wanted] -> [wanted, vocab]."""
    out = model(input_ids=input_ids, position_ids=positions, cache=cache, use_cache=True, logits_to_keep=logit_tokens)
    logits: Tensor = out.logits[0]
    return logits


@torch.inference_mode()
def _probe(model: nn.Module, facts: CheckpointFacts) -> list[LayerProbe]:
    """Run one token to see what each layer writes and attends to.

    Raises:
        ModelError: a layer bypasses a hook, or attention gets an argument that is not understood.
    """
    probe = LayoutProbe()
    attach(model, probe)
    one = torch.zeros(1, 1, dtype=torch.int64, device=next(model.parameters()).device)
    _forward(model, probe, one, one, one[0])
    config: Any = model.config
    layers = [probe.probed[layer] for layer in sorted(probe.probed)]
    problem = ""
    if probe.foreign_attention or sorted(probe.probed) != list(range(config.num_hidden_layers)):
        problem = "some layer keeps no K and V of its own"
    elif not all(layer.attended for layer in layers):
        problem = "some layer does not attend through the attention interface"
    elif unknown := probe.extras - KNOWN_EXTRAS:
        problem = f"attention gets arguments that are not understood: {', '.join(sorted(unknown))}"
    elif any(
        kind == "sliding_attention" and not layer.window
        for kind, layer in zip(getattr(config, "layer_types", None) or (), layers, strict=False)
    ):
        problem = "a sliding window is expressed by a mask alone"
    if problem:
        raise ModelError(f"model family {facts.family!r} is refused: {problem}.")
    return layers


def _layout(probed: list[LayerProbe], page_size: int) -> KVLayout:
    segments: list[Segment] = []
    for index, probe in enumerate(probed):
        dtype = str(probe.dtype).removeprefix("torch.")
        segments.append(Segment("key", index, probe.key_shape, dtype))
        segments.append(Segment("value", index, probe.value_shape, dtype))
    return KVLayout(page_size, tuple(segments))
