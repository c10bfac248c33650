"""The two hooks: a cache that writes into the pool, and an attention function that reads from it.

transformers calls ``cache.update`` with every layer's new K and V, then the registered attention function. Where a
model attends to exactly what ``update`` took (most do), attention gathers pages itself. Where it expands a latent in
between (MLA), ``update`` hands out the whole context and attention only slices. Which of both is known from a
one-token dry run (``LayoutProbe``), which also gives the page layout.

Source: transformers 5.24, ``cache_utils.Cache``, ``AttentionInterface``, ``masking_utils`` (an attention name
without a mask function gets no mask built).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from msgspec import Struct, structs
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from kvfence.core.invariant import require
from kvfence.models.native import Kernels
from kvfence.models.plan import DecodeGroup, PassPlan, Span

ATTENTION_NAME = "kvfence_pages"
_CACHE_ATTRIBUTE = "kvfence_cache"


class Scoring(Struct, frozen=True):
    """How one layer turns queries and keys into weights.

    Units:
        window: tokens a query sees, itself included; 0 is all.
    """

    scale: float | None = None
    window: int = 0
    softcap: float | None = None
    sinks: Any = None
    extras: tuple[str, ...] = ()


class LayerProbe(Struct):
    """What the dry run saw of one layer; ``direct``: attention got the very tensors that ``update`` took."""

    key_shape: tuple[int, ...]
    value_shape: tuple[int, ...]
    dtype: torch.dtype
    direct: bool = False
    window: int = 0
    softcap: bool = False
    sinks: bool = False
    attended: bool = False


class LayoutProbe(Cache):
    """Record what each layer writes and attends to in a one-token pass; store nothing."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.probed: dict[int, LayerProbe] = {}
        self.extras: set[str] = set()
        self.foreign_attention = False
        self._given: dict[int, tuple[Tensor, Tensor]] = {}

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Positions are always given explicitly."""
        return 0

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Record the shapes and hand the tensors back."""
        self.probed[layer_idx] = LayerProbe(
            (key_states.shape[1], key_states.shape[3]), (value_states.shape[1], value_states.shape[3]), key_states.dtype
        )
        self._given[layer_idx] = (key_states, value_states)
        return key_states, value_states

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Record how the layer attends; the result is of the right shape only."""
        self.extras.update(scoring.extras)
        if layer not in self.probed:
            self.foreign_attention = True
        else:
            probe, (given_key, given_value) = self.probed[layer], self._given[layer]
            probe.direct = key is given_key and value is given_value
            probe.window, probe.attended = scoring.window, True
            probe.softcap, probe.sinks = scoring.softcap is not None, scoring.sinks is not None
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1])


class PoolCache(Cache):
    """Every layer's K and V, in pool pages; ``plan`` says which pages this pass may touch."""

    def __init__(self, views: list[Tensor], direct: list[bool], kernels: Kernels | None = None) -> None:
        super().__init__(layers=[])
        self._kernels = kernels
        self._views = [(views[2 * layer], views[2 * layer + 1]) for layer in range(len(direct))]
        self._direct = direct
        self._gatherers = (Gatherer(), Gatherer())
        self.plan: PassPlan | None = None

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Positions are always given explicitly."""
        return 0

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Write the pass's new tokens into their pages; give the whole context where attention cannot gather it."""
        plan = self._current()
        for view, states in zip(self._views[layer_idx], (key_states, value_states), strict=True):
            if plan.fresh.numel():
                view.index_fill_(0, plan.fresh, 0)
            view[plan.write_pages, plan.write_slots] = states[0].transpose(0, 1)
        if self._direct[layer_idx]:
            return key_states, value_states
        key, value = self._views[layer_idx]
        return _whole_context(plan, key), _whole_context(plan, value)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Attend every row of the pass to its own context.

        Shapes:
            query: [1, heads, tokens, dim]. Returns: [1, tokens, heads, value dim].
        """
        plan = self._current()
        out = query.new_empty(query.shape[2], query.shape[1], value.shape[-1])
        if not self._direct[layer]:
            _attend_given(plan, (query, key, value), scoring, out)
            return out[None]
        for group in plan.groups:
            self._attend_group(layer, group, query[0], scoring, out)
        for span in plan.spans:
            part = slice(span.begin, span.end)
            context = (key[:, :, part], value[:, :, part])
            if not span.is_plain_causal(scoring.window):
                gathered = self._gather(layer, span.pages[None])
                context = (gathered[0][:, :, : span.stop], gathered[1][:, :, : span.stop])
            out[part] = _attend_span(span, query[:, :, part], context, scoring)
        return out[None]

    def _attend_group(self, layer: int, group: DecodeGroup, query: Tensor, scoring: Scoring, out: Tensor) -> None:
        """Attend one token of each row: pages are read where they are by the kernel, or gathered for torch."""
        reads, views, part = group.reads(scoring.window), self._views[layer], slice(group.begin, group.end)
        if self._kernels is None or not self._kernels.attends(query, *views):
            context = (*self._gather(layer, reads.table), group.mask(scoring.window))
            out[part] = _attend_gathered(query[:, part], context, scoring)
            return
        scale = query.shape[2] ** -0.5 if scoring.scale is None else scoring.scale
        options = {"softcap": scoring.softcap, "sinks": scoring.sinks}
        self._kernels.attend(query[:, part], views, reads, scale, out[part], **options)

    def _gather(self, layer: int, table: Tensor) -> tuple[Tensor, Tensor]:
        key, value = self._views[layer]
        return self._gatherers[0].gather(key, table), self._gatherers[1].gather(value, table)

    def _current(self) -> PassPlan:
        require(self.plan is not None, "a pass has begun")
        return self.plan  # type: ignore[return-value]


def attach(model: nn.Module, cache: PoolCache | LayoutProbe) -> None:
    """Make a model's attention modules use this cache: the attention function is given only its module."""
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            setattr(module, _CACHE_ATTRIBUTE, cache)


def register_attention() -> None:
    """Make the attention function known to transformers under ``ATTENTION_NAME``."""
    AttentionInterface.register(ATTENTION_NAME, attend_pages)


def attend_pages(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> tuple[Tensor, None]:
    """Be transformers' attention function: find the module's cache and attend through it."""
    options["attention_mask"] = attention_mask
    scoring = Scoring(
        scale=options.pop("scaling", None),
        window=options.pop("sliding_window", None) or 0,
        softcap=options.pop("softcap", None),
        sinks=options.pop("s_aux", None),
        extras=tuple(name for name, given in options.items() if given is not None),
    )
    cache = getattr(module, _CACHE_ATTRIBUTE)
    out: Tensor = cache.attend(module.layer_idx, query, key, value, scoring)
    return out, None


class Gatherer:
    """Copies pages of one role (key or value) into memory that every layer of every pass uses again.

    Fresh memory for each layer is cold and pushes weights out of the caches: measured, the copy took three times as
    long.
    """

    def __init__(self) -> None:
        self._scratch: Tensor | None = None

    def gather(self, view: Tensor, table: Tensor) -> Tensor:
        """Give pages side by side, until the next call.

        Shapes:
            view: [pages, size, heads, dim]; table: [rows, n]. Returns: [rows, heads, n * size, dim].
        """
        pages = view.flatten(1)
        num_values = table.numel() * pages.shape[1]
        if self._scratch is None or self._scratch.numel() < num_values or self._scratch.dtype is not view.dtype:
            self._scratch = view.new_empty(num_values)
        out = self._scratch[:num_values].view(table.numel(), pages.shape[1])
        torch.index_select(pages, 0, table.flatten(), out=out)
        return out.view(table.shape[0], -1, *view.shape[2:]).transpose(1, 2)


def _attend_gathered(query: Tensor, context: tuple[Tensor, Tensor, Tensor], scoring: Scoring) -> Tensor:
    """Attend one token of each row; query heads that share a KV head are the rows of one matrix.

    Shapes:
        query: [heads, rows, dim]. Returns: [rows, heads, value dim].
    """
    key, value, mask = context
    rows, kv_heads = key.shape[0], key.shape[1]
    shape = (rows, kv_heads, query.shape[0] // kv_heads)
    packed = query.transpose(0, 1).reshape(*shape, query.shape[2])
    attended = _score(packed, key, value, mask, _with_sinks(scoring, (1, kv_heads, shape[2], 1)))
    return attended.reshape(rows, query.shape[0], value.shape[-1])


def _attend_span(span: Span, query: Tensor, context: tuple[Tensor, Tensor], scoring: Scoring) -> Tensor:
    """Attend a chunk. Shapes: query [1, heads, tokens, dim] -> [tokens, heads, value dim]."""
    key, value = context
    heads, kv_heads = query.shape[1], key.shape[1]
    if scoring.softcap is None and scoring.sinks is None:
        plain = span.is_plain_causal(scoring.window)
        mask = None if plain else span.mask(scoring.window)
        attended = F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=plain, scale=scoring.scale, enable_gqa=heads != kv_heads
        )
        return attended[0].transpose(0, 1)
    key, value = (states.repeat_interleave(heads // kv_heads, 1) for states in context)
    shaped = _with_sinks(scoring, (1, heads, 1, 1))
    return _score(query, key, value, span.mask(scoring.window), shaped)[0].transpose(0, 1)


def _with_sinks(scoring: Scoring, shape: tuple[int, ...]) -> Scoring:
    return scoring if scoring.sinks is None else structs.replace(scoring, sinks=scoring.sinks.view(shape))


def _score(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scoring: Scoring) -> Tensor:
    """Attend with any of scale, softcap and sinks; query and key have the same number of heads."""
    if scoring.softcap is None and scoring.sinks is None:
        return F.scaled_dot_product_attention(query, key, value, mask, scale=scoring.scale)
    scale = query.shape[-1] ** -0.5 if scoring.scale is None else scoring.scale
    scores = (query @ key.transpose(2, 3)).float() * scale
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    if scoring.sinks is not None:
        column = scoring.sinks.float().expand(scores.shape[0], -1, scores.shape[2], 1)
        weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return weights.to(value.dtype) @ value


def _whole_context(plan: PassPlan, view: Tensor) -> Tensor:
    """Gather every row's context, packed. Shapes: [pages, size, heads, dim] -> [1, heads, tokens, dim]."""
    return view[plan.context_slots].transpose(0, 1)[None]


def _attend_given(plan: PassPlan, given: tuple[Tensor, Tensor, Tensor], scoring: Scoring, out: Tensor) -> None:
    """Attend each row to its slice of a packed context that the model expanded from latents."""
    query, key, value = given
    at = 0
    for span in plan.context_spans:
        part, context = slice(span.begin, span.end), slice(at, at + span.stop)
        at += span.stop
        out[part] = _attend_span(span, query[:, :, part], (key[:, :, context], value[:, :, context]), scoring)
