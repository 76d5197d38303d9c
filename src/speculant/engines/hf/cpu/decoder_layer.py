"""Decoder layers of the Llama family in a few calls of compiled code instead of some forty operations.

Between two PyTorch operations a pass over few rows reads megabytes of weights, which evict everything else from the
caches, including the operations' code. So the cost depends on the number of operations rather than on what they
compute. `layer.cpp` runs a layer in one call if its own kernel multiplies, heads share keys and the cache has room; in
two calls around any other attention; and if another kernel is faster for these rows, in four calls between the
products.

In drafts of layers of which only one sublayer runs, the calls are the same, and leave out the other one (`alone`).

`layer_matching.py` recognises these layers. Each part must be as transformers made it: a layer with hooks, another
forward, other types of weights or adapters runs unchanged. All of this is checked in every call, so changes take effect
at once.
"""

from __future__ import annotations

import copy
import ctypes
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from transformers.cache_utils import DynamicCache

from speculant.core.sublayers import Part as Sublayer
from speculant.engines.hf.batch_attention import BatchCache, attention_function
from speculant.engines.hf.caches.in_place_layer import InPlaceLayer
from speculant.engines.hf.cpu.batch_rows import as_array, batch_calls
from speculant.engines.hf.cpu.gqa import AttentionArguments, GQAttention, is_plain_sdpa
from speculant.engines.hf.cpu.kernel_table import MAX_ROWS, KernelTable
from speculant.engines.hf.cpu.layer_matching import (
    LINEARS,
    SUBLAYERS,
    Part,
    is_known,
    rotary_functions,
    window_option,
)
from speculant.engines.hf.cpu.layer_structs import LayerArguments, LinearArguments, PositionArguments
from speculant.engines.hf.cpu.linear import AcceleratedLinear, readable
from speculant.engines.hf.cpu.pass_plan import AppendedRows, CacheRows, LayerCall, PassPlans
from speculant.engines.hf.cpu.products import Kernel
from speculant.engines.hf.quantized.modules import QuantizedLinear
from speculant.engines.hf.views.layer_parts import split_layer

_ONLY: dict[Sublayer, int] = {"attention": 1, "mlp": 2}  # constants of layer.h


class FusedLayer:
    """The forward of one decoder layer, or of one of its sublayers.

    Attributes:
        only: the sublayer that runs; None for both.
    """

    only: Sublayer | None = None

    def __init__(self, module: Any, table: KernelTable, attention: GQAttention | None, plans: PassPlans) -> None:
        """Take a layer of the family, kernels for its products, the replacement for "sdpa" attention, and the plans."""
        attention_module, mlp = module.self_attn, module.mlp
        self.module, self._attention, self._plans = module, attention_module, plans
        self._table, self._native, self._gqa = table, table.products.native, attention
        self._class, self._forward = type(module), type(module).forward
        linears = {name: getattr(attention_module if name in LINEARS[:4] else mlp, name) for name in LINEARS}
        hidden, head = linears["q_proj"].in_features, attention_module.head_dim
        q_width, kv_width, inner = (linears[name].out_features for name in ("q_proj", "k_proj", "up_proj"))
        self._layer = LayerArguments(hidden=hidden, inner=inner, given=hidden)
        self._heads, self._kv_heads, self._head = q_width // head, kv_width // head, head
        # The shapes that transformers derives from the config; a layer with other shapes has been changed.
        shapes = [(q_width, hidden), (kv_width, hidden), (kv_width, hidden), (hidden, q_width)]
        shapes += [(inner, hidden), (inner, hidden), (hidden, inner)]
        self._shapes = shapes
        self._linears = [(name, linears[name], shape) for name, shape in zip(LINEARS, shapes, strict=True)]
        self._quantized = {name: linear for name, linear in linears.items() if isinstance(linear, QuantizedLinear)}
        self.products = {
            name: AcceleratedLinear(linear, table) for name, linear in linears.items() if name not in self._quantized
        }
        norms = {"input": module.input_layernorm, "post": module.post_attention_layernorm}
        norms |= {name: attention_module._modules.get(f"{name}_norm") for name in ("q", "k")}
        self._norms = [
            (name, norm, (head if name in ("q", "k") else hidden,)) for name, norm in norms.items() if norm is not None
        ]
        self._parts = [
            Part(owner, name, part, type(part), type(part).forward)
            for owner in (module, attention_module, mlp)
            for name, part in owner._modules.items()
            if part is not None
        ]
        self._home = sys.modules[self._class.__module__]
        self._rotary = rotary_functions(self._home)
        self._current: list[Any] = []
        self._dtype = torch.float32
        self._alone: dict[Sublayer, FusedLayer] = {}

    def alone(self, part: Sublayer) -> FusedLayer:
        """Return the forward of one sublayer, for the same shadow of the layer."""
        if part not in self._alone:
            found = copy.copy(self)
            found.only, found._layer = part, LayerArguments.from_buffer_copy(self._layer)
            found._layer.only = _ONLY[part]
            self._alone[part] = found
        return self._alone[part]

    @property
    def index(self) -> int:
        """The index of the layer in the model."""
        found: int = self._attention.layer_idx
        return found

    @property
    def weights(self) -> int:
        """The number of weights in its matrices."""
        sizes: list[int] = [outs * k for outs, k in self._shapes]
        return sum(sizes)

    def ready(self) -> list[Any] | None:
        """Look up the weights and return them; None if the layer or part of it has been changed."""
        if module_hooks._global_forward_hooks or module_hooks._global_forward_pre_hooks:
            return None
        kind = type(self.module)
        if kind is not self._class or kind.forward is not self._forward or rotary_functions(self._home) != self._rotary:
            return None
        if not all(part.untouched() for part in self._parts):
            return None
        weights: list[Any] = []
        dtype: torch.dtype | None = None
        current: list[Any] = []
        for _, norm, shape in self._norms:
            weight = norm._parameters.get("weight")
            if weight is None or not _usable(weight, shape, dtype or weight.dtype):
                return None
            dtype = weight.dtype
            weights.append(weight)
            current += (weight.data_ptr(), norm.variance_epsilon)
        for name, linear, outs_and_k in self._linears:
            bias = linear._parameters.get("bias")
            if not (bias is None or _usable(bias, outs_and_k[:1], dtype)):
                return None
            if name in self._quantized:
                weight = linear.quantized
                if linear.dtype is not dtype or (weight.outs, weight.k) != outs_and_k:
                    return None
                found = 0, False, linear.activations == "float", ctypes.addressof(linear.arguments())
            else:
                weight = linear._parameters.get("weight")
                if weight is None or not _usable(weight, outs_and_k, dtype):
                    return None
                found = weight.data_ptr(), False, False, 0
            weights += (weight,) if bias is None else (weight, bias)
            current.append((found[0] or None, None if bias is None else bias.data_ptr(), *found[1:3], found[3] or None))
        current.append(dtype)
        if current != self._current:
            self._set(current)
        return weights

    def _set(self, current: list[Any]) -> None:
        left = iter(current)
        for name, _, _ in self._norms:
            setattr(self._layer, f"{name}_norm", next(left))
            setattr(self._layer, f"{name}_eps", next(left))
        for name, _, _ in self._linears:
            setattr(self._layer, name, LinearArguments(*next(left)))
        self._dtype = next(left)
        self._layer.is_bf16 = self._dtype is torch.bfloat16
        self._current = current

    def __call__(
        self,
        shadow: Any,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **options: Any,
    ) -> Tensor:
        """Return [B, n, hidden] for [B, n, hidden]; `shadow` is the shadow of the layer that the pass runs.

        Raises:
            RuntimeError: an attention function returned a value that the layer cannot use.
        """
        options |= {"position_ids": position_ids, "use_cache": use_cache}
        whole = self._plans.find(self, hidden_states, past_key_values, attention_mask, position_embeddings, options)
        if whole is not None and (output := whole.run(hidden_states)) is not None:
            return output
        weights = self.ready()  # kept alive until the end, in case they are replaced meanwhile
        kernel = self._table.one_call(self._dtype, self._shapes, hidden_states[..., 0].numel())
        supported = position_embeddings is not None and self._supports(
            hidden_states, position_embeddings, kernel, together=type(past_key_values) is BatchCache
        )
        if position_embeddings is None or not weights or not supported or (self.only == "mlp" and kernel is None):
            own_layer = shadow if self.only is None else split_layer(self.module, shadow, SUBLAYERS, self.only)
            answer: Tensor = type(self.module).forward(
                own_layer,
                hidden_states,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                position_embeddings=position_embeddings,
                **options,
            )
            return answer
        layer, positions = self._arguments(kernel, position_embeddings)
        if self.only == "mlp":
            return self._finish(layer, hidden_states, hidden_states[..., :0], kernel)
        batch, rows, _ = hidden_states.shape
        shape = (batch, self._heads, rows, self._head)
        query, own = (
            hidden_states.new_empty(shape),
            self._own_attention(shape, past_key_values, attention_mask, options),
        )
        if own is not None and own[0].take():
            _, calls = own
            attended, size = hidden_states.new_empty((batch, rows, self._heads * self._head)), query.element_size()
            start = 0
            for call in calls:
                place, start = start * self._heads * self._head * size, start + call.batch * call.n
                call.q, call.y = query.data_ptr() + place, attended.data_ptr() + place
            self._project(layer, hidden_states, positions, calls, kernel)
            self._native.attention(ctypes.byref(calls), len(calls), torch.get_num_threads())
        else:
            key, value = (query.new_empty((batch, self._kv_heads, rows, self._head)) for _ in range(2))
            sizes = (batch, self._heads, self._kv_heads, rows, rows, self._head)
            pointers = (query.data_ptr(), key.data_ptr(), value.data_ptr(), None, None)
            call = AttentionArguments(*pointers, *sizes, *key.stride()[:2], *value.stride()[:2])
            self._project(layer, hidden_states, positions, as_array(call), kernel)
            attended = self._attend(query, key, value, attention_mask, past_key_values, options)
        return self._finish(layer, hidden_states, attended, kernel)

    def prepare(
        self, x: Tensor, cache: Any, mask: Tensor | None, embeddings: tuple[Tensor, Tensor], options: dict[str, Any]
    ) -> LayerCall | None:
        """Return a call that computes the whole layer, if a single one can; nothing is appended to the cache yet.

        Args:
            x: a tensor like the layer's input, [B, n, hidden].
            cache, mask, embeddings, options: the arguments of the layer's call.
        """
        weights = self.ready()
        kernel = self._table.one_call(self._dtype, self._shapes, x[..., 0].numel())
        if kernel is None or not weights or not self._supports(x, embeddings, kernel):
            return None
        (batch, rows, _), own = x.shape, None
        if self.only != "mlp":
            own = self._own_attention((batch, self._heads, rows, self._head), cache, mask, options)
            if own is None:
                return None
        sizes = AttentionArguments(batch=batch, n=rows, heads=self._heads, head=self._head)
        cached, calls = (None, as_array(sizes)) if own is None else own
        arguments = (*self._arguments(kernel, embeddings), calls)
        return LayerCall(self._native, cached, arguments, len(calls), weights, self._dtype)

    def _arguments(
        self, kernel: Kernel | None, embeddings: tuple[Tensor, Tensor]
    ) -> tuple[LayerArguments, PositionArguments]:
        layer = LayerArguments.from_buffer_copy(self._layer)  # another thread may be in this layer with another kernel
        layer.native_bf16 = kernel == "bf16_dot"
        cos, sin = embeddings
        return layer, PositionArguments(cos.data_ptr(), sin.data_ptr(), cos.shape[0] == 1)

    def _project(
        self,
        layer: LayerArguments,
        x: Tensor,
        positions: PositionArguments,
        calls: ctypes.Array[AttentionArguments],
        kernel: Kernel | None,
    ) -> None:
        """Write the queries and the new rows of keys and values to where each sequence's arguments point."""
        native, threads = self._native, torch.get_num_threads()
        pointers = ctypes.byref(positions), ctypes.byref(calls), len(calls)
        if kernel is not None:
            native.before_attention(ctypes.byref(layer), x.data_ptr(), *pointers, threads)
            return
        normed = torch.empty_like(x)
        native.norm(ctypes.byref(layer), x.data_ptr(), normed.data_ptr(), x[..., 0].numel())
        projected = [self._product(name, normed) for name in ("q_proj", "k_proj", "v_proj")]
        native.split_heads(ctypes.byref(layer), *(each.data_ptr() for each in projected), *pointers)

    def _finish(self, layer: LayerArguments, x: Tensor, attended: Tensor, kernel: Kernel | None) -> Tensor:
        """Return the layer's output, given its input and the output of its attention."""
        native, threads, rows = self._native, torch.get_num_threads(), x[..., 0].numel()
        if kernel is not None:
            y = torch.empty_like(x)
            pointers = ctypes.byref(layer), x.data_ptr(), attended.data_ptr(), y.data_ptr()
            native.after_attention(*pointers, rows, attended.shape[-1], threads)
            return y
        output = self._product("o_proj", attended)
        if self.only == "attention":
            return x + output
        total, normed = torch.empty_like(x), torch.empty_like(x)
        pointers = ctypes.byref(layer), x.data_ptr(), output.data_ptr(), total.data_ptr()
        native.add_norm(*pointers, normed.data_ptr(), rows)
        gated, up = self._product("gate_proj", normed), self._product("up_proj", normed)
        native.gate(ctypes.byref(layer), gated.data_ptr(), up.data_ptr(), gated.data_ptr(), gated.numel(), threads)
        return total.add_(self._product("down_proj", gated))

    def _product(self, name: str, x: Tensor) -> Tensor:
        if name in self._quantized:
            found: Tensor = self._quantized[name](x)
            return found
        linear = self.products[name]
        return linear(linear.module, x).contiguous()

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, cache: Any, options: dict[str, Any]
    ) -> Tensor:
        """Append the keys to the cache; return the output [B, n, width] of the attention that the config names."""
        attention = self._attention
        name = attention.config._attn_implementation
        attend: Any = self._gqa if name == "sdpa" and is_plain_sdpa() else None
        attend = attend or attention_function(attention, name)
        if isinstance(cache, BatchCache):
            attend = cache.attend
        if cache is not None:
            key, value = cache.update(key, value, attention.layer_idx)
        options |= window_option(attention)
        attended, _ = attend(attention, query, key, value, mask, dropout=0.0, scaling=attention.scaling, **options)
        shape = (query.shape[0], query.shape[2], self._heads * self._head)
        attended = attended.reshape(*shape[:2], -1).contiguous()
        if not _usable(attended, shape, query.dtype):
            raise RuntimeError(
                f"the attention function {name!r} returned {attended.dtype} of the shape {tuple(attended.shape)} where "
                f"{self._class.__name__} needs {query.dtype} of {shape}."
            )
        found: Tensor = attended
        return found

    def _own_attention(
        self, shape: tuple[int, ...], cache: Any, mask: Tensor | None, options: dict[str, Any]
    ) -> tuple[AppendedRows, ctypes.Array[AttentionArguments]] | None:
        """Return the rows, and each sequence's arguments, for our own attention; None if another one is needed."""
        attend = self._gqa
        if attend is None or self._attention.config._attn_implementation != "sdpa" or not is_plain_sdpa():
            return None
        index = self._attention.layer_idx
        if type(cache) is BatchCache:
            if mask is None or shape[0] != 1:
                return None
            return batch_calls(attend, self._attention, cache, mask.shape[-1], shape, self._dtype, options)
        layer = cache.layers[index] if type(cache) is DynamicCache and index < len(cache.layers) else None
        if not isinstance(layer, InPlaceLayer) or not layer.is_initialized or layer.keys.shape[0] != shape[0]:
            return None
        rows = layer.extend(shape[2]) if layer.keys.dtype is self._dtype else None
        if rows is None or not attend.serves(self._attention, shape, rows[0], mask, options):
            return None
        call = attend.arguments(shape, *rows, mask, self._attention.scaling)
        return None if call is None else (CacheRows(layer, layer.held, rows), as_array(call))

    def _supports(
        self, x: Tensor, embeddings: tuple[Tensor, Tensor], kernel: Kernel | None, *, together: bool = False
    ) -> bool:
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return False
        if self.module.training or self._attention.training:
            return False
        # Without faster products, only the attention of several sequences in one call is worth the calls.
        if kernel is None and not together and not self._table.measured(self._dtype, self._shapes):
            return False
        batch, rows, _ = x.shape
        shape = (embeddings[0].shape[0], rows, self._head)
        return (
            batch * rows > 0
            and (self._table.exact or batch * rows <= MAX_ROWS)
            and shape[0] in (1, batch)
            and all(_usable(each, shape, self._dtype) for each in embeddings)
            and _usable(x, (batch, rows, self._layer.hidden), self._dtype)
        )


def find_fused_layers(
    model: nn.Module, table: KernelTable, attention: GQAttention, *, minimum: int, plans: PassPlans | None = None
) -> tuple[FusedLayer, ...]:
    """Return the layers that the compiled code supports and whose matrices have at least `minimum` weights."""
    plans = PassPlans() if plans is None else plans
    layers = (FusedLayer(module, table, attention, plans) for module in model.modules() if is_known(module))
    found = tuple(layer for layer in layers if layer.weights >= minimum and layer.ready() is not None)
    known = {layer.index: layer for layer in found}
    plans.layers = [known.get(index) for index in range(max(known, default=-1) + 1)]
    return found


def _usable(weight: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None) -> bool:
    return weight.dtype is dtype and weight.shape == shape and readable(weight)
