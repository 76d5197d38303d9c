"""Decoder layers of the Llama family in a few calls of compiled code instead of some forty operations.

Between two PyTorch operations a pass over few rows reads megabytes of weights, which evict everything else from the
caches, including the operations' code. So the cost depends on the number of operations rather than on what they
compute. `layer.cpp` runs all layers of a pass in one call (`layer_stack.py`), or a single layer, if its own kernel
multiplies and heads share keys. A layer takes two calls around any other attention; and if another kernel is faster for
these rows, four calls between the products.

In drafts of layers of which only one sublayer runs, the calls are the same, and leave out the other one (`alone`).

`layer_matching.py` recognises these layers. Each part must be as transformers made it: a layer with hooks, another
forward, other types of weights or adapters runs unchanged. All of this is checked in every pass, so changes take effect
at once.
"""

from __future__ import annotations

import copy
import ctypes
import sys
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from speculant.core.sublayers import Part as Sublayer
from speculant.engines.hf.batch_attention import BatchCache, attention_function
from speculant.engines.hf.cpu.batch_rows import PassRows, as_array
from speculant.engines.hf.cpu.gqa import AttentionArguments, GQAttention, attention_settings, is_plain_sdpa
from speculant.engines.hf.cpu.kernel_table import MAX_ROWS, KernelTable
from speculant.engines.hf.cpu.layer_calls import LayerCall
from speculant.engines.hf.cpu.layer_matching import (
    LINEARS,
    SUBLAYERS,
    Part,
    rotary_functions,
    window_option,
)
from speculant.engines.hf.cpu.layer_structs import ONLY, LayerArguments, LinearArguments, PositionArguments
from speculant.engines.hf.cpu.linear import AcceleratedLinear, readable
from speculant.engines.hf.cpu.products import Kernel
from speculant.engines.hf.quantized.modules import QuantizedLinear
from speculant.engines.hf.views.layer_parts import split_layer


class CallPlans(Protocol):
    """The prepared calls of a pass; see `PassPlans`."""

    def find(
        self, layer: FusedLayer, x: Tensor, cache: Any, mask: Tensor | None, embeddings: Any, options: dict[str, Any]
    ) -> LayerCall | None:
        """Return the call of a layer; None if a single call cannot compute it."""


class FusedLayer:
    """The forward of one decoder layer, or of one of its sublayers.

    Attributes:
        module: the layer.
        attention: its attention module.
        native: the compiled code.
        products: its products with matrices that are not quantised, by name.
        home: the file of its class, as a module.
        heads, head: number and size of its query heads.
        dtype: dtype of its weights when they were last looked up.
        only: the sublayer that runs; None for both.
    """

    only: Sublayer | None = None

    def __init__(self, module: Any, table: KernelTable, attention: GQAttention | None, plans: CallPlans) -> None:
        """Take a layer of the family, kernels for its products, the replacement for "sdpa" attention, and the plans."""
        attention_module, mlp = module.self_attn, module.mlp
        self.module, self.attention, self._plans = module, attention_module, plans
        self._table, self.native, self._gqa = table, table.products.native, attention
        self._class, self._forward = type(module), type(module).forward
        linears = {name: getattr(attention_module if name in LINEARS[:4] else mlp, name) for name in LINEARS}
        hidden, head = linears["q_proj"].in_features, attention_module.head_dim
        q_width, kv_width, inner = (linears[name].out_features for name in ("q_proj", "k_proj", "up_proj"))
        self._layer = LayerArguments(hidden=hidden, inner=inner, given=hidden)
        self.heads, self._kv_heads, self.head = q_width // head, kv_width // head, head
        # The shapes that transformers derives from the config; a layer with other shapes has been changed.
        shapes = [(q_width, hidden), (kv_width, hidden), (kv_width, hidden), (hidden, q_width)]
        shapes += [(inner, hidden), (inner, hidden), (hidden, inner)]
        self._shapes = tuple(shapes)
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
        self.home = sys.modules[self._class.__module__]
        self._rotary = rotary_functions(self.home)
        self._current: list[Any] = []
        self.dtype = torch.float32
        self._alone: dict[Sublayer, FusedLayer] = {}
        self._kernels: dict[tuple[torch.dtype, int], Kernel | None] = {}  # by dtype and number of rows

    def alone(self, part: Sublayer) -> FusedLayer:
        """Return the forward of one sublayer, for the same shadow of the layer."""
        if part not in self._alone:
            self._alone[part] = found = copy.copy(self)
            found.only = part
        return self._alone[part]

    @property
    def index(self) -> int:
        """The index of the layer in the model."""
        found: int = self.attention.layer_idx
        return found

    @property
    def hidden(self) -> int:
        """The size of its input."""
        return int(self._layer.hidden)

    @property
    def weights(self) -> int:
        """The number of weights in its matrices."""
        sizes: list[int] = [outs * k for outs, k in self._shapes]
        return sum(sizes)

    @property
    def modules(self) -> list[nn.Module]:
        """The modules whose state determines whether `ready` returns weights, and which."""
        return [self.module, *(part.module for part in self._parts)]

    @property
    def form(self) -> tuple[Any, ...]:
        """What the kernel of a whole layer depends on, besides the pass."""
        return self.dtype, self.head, self._shapes

    @property
    def attention_form(self) -> tuple[Any, ...]:
        """What the attention depends on besides the pass, with the kind of its mask."""
        config = self.attention.config
        kinds = getattr(config, "layer_types", None)
        kind = None if kinds is None else kinds[self.index]
        return *self.form, self.heads, id(config), *attention_settings(self.attention), kind

    def ready(self) -> list[Any] | None:
        """Look up the weights and return them; None if the layer or part of it has been changed."""
        if module_hooks._global_forward_hooks or module_hooks._global_forward_pre_hooks:
            return None
        kind = type(self.module)
        if kind is not self._class or kind.forward is not self._forward or rotary_functions(self.home) != self._rotary:
            return None
        if self.module.training or self.attention.training or not all(part.is_intact() for part in self._parts):
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
        self.dtype = next(left)
        self._layer.is_bf16 = self.dtype is torch.bfloat16
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
        kernel = self._one_call(hidden_states[..., 0].numel())
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
        layer, (cos, sin) = self.arguments(kernel), position_embeddings
        positions = PositionArguments(cos.data_ptr(), sin.data_ptr(), cos.shape[0] == 1)
        if self.only == "mlp":
            return self._finish(layer, hidden_states, hidden_states[..., :0], kernel)
        batch, rows, _ = hidden_states.shape
        shape = (batch, self.heads, rows, self.head)
        query = hidden_states.new_empty(shape)
        cached = self.pass_rows(past_key_values, attention_mask, hidden_states, options)
        own = None if cached is None else cached.calls(self.attention, self.heads, self.head, self.dtype)
        if own is not None and own[0].take():
            _, calls = own
            attended, size = hidden_states.new_empty((batch, rows, self.heads * self.head)), query.element_size()
            start = 0
            for call in calls:
                place, start = start * self.heads * self.head * size, start + call.batch * call.n
                call.q, call.y = query.data_ptr() + place, attended.data_ptr() + place
            self._project(layer, hidden_states, positions, calls, kernel)
            self.native.attention(ctypes.byref(calls), len(calls), torch.get_num_threads())
        else:
            key, value = (query.new_empty((batch, self._kv_heads, rows, self.head)) for _ in range(2))
            sizes = (batch, self.heads, self._kv_heads, rows, rows, self.head)
            pointers = (query.data_ptr(), key.data_ptr(), value.data_ptr(), None, None)
            call = AttentionArguments(*pointers, *sizes, *key.stride()[:2], *value.stride()[:2])
            self._project(layer, hidden_states, positions, as_array(call), kernel)
            attended = self._attend(query, key, value, attention_mask, past_key_values, options)
        return self._finish(layer, hidden_states, attended, kernel)

    def single_kernel(self, x: Tensor, embeddings: tuple[Tensor, ...]) -> Kernel | None:
        """Return the kernel with which one call computes the whole layer; None if none can, or it would be slower.

        Args:
            x: [B, n, hidden], the input.
            embeddings: cos and sin; () if they are in tables.
        """
        kernel = self._one_call(x[..., 0].numel())
        return kernel if kernel is not None and self._supports(x, embeddings, kernel) else None

    def _one_call(self, rows: int) -> Kernel | None:
        key = self.dtype, rows
        if rows > MAX_ROWS:
            return self._table.one_call(self.dtype, self._shapes, rows)
        if key not in self._kernels:
            self._kernels[key] = self._table.one_call(self.dtype, self._shapes, rows)
        return self._kernels[key]

    def pass_rows(self, cache: Any, mask: Tensor | None, x: Tensor, options: dict[str, Any]) -> PassRows | None:
        """Return the cached rows for our own attention, for all layers of a config; None if another one is needed."""
        if self._gqa is None or self.attention.config._attn_implementation != "sdpa" or not is_plain_sdpa():
            return None
        return PassRows(self._gqa, cache, mask, x.shape[0], x.shape[1], options)

    def arguments(self, kernel: Kernel | None = None, found: LayerArguments | None = None) -> LayerArguments:
        """Return the struct for compiled code: a copy, as another thread may be in this layer with another kernel.

        Args:
            kernel: the kernel of the layer's products.
            found: the struct when the weights were looked up; None for the latest.
        """
        layer = LayerArguments.from_buffer_copy(self._layer if found is None else found)
        layer.native_bf16, layer.only = kernel == "bf16_dot", ONLY[self.only]
        return layer

    def _project(
        self,
        layer: LayerArguments,
        x: Tensor,
        positions: PositionArguments,
        calls: ctypes.Array[AttentionArguments],
        kernel: Kernel | None,
    ) -> None:
        """Write the queries and the new rows of keys and values to where each sequence's arguments point."""
        native, threads = self.native, torch.get_num_threads()
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
        native, threads, rows = self.native, torch.get_num_threads(), x[..., 0].numel()
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
        attention = self.attention
        name = attention.config._attn_implementation
        attend: Any = self._gqa if name == "sdpa" and is_plain_sdpa() else None
        attend = attend or attention_function(attention, name)
        if isinstance(cache, BatchCache):
            attend = cache.attend
        if cache is not None:
            key, value = cache.update(key, value, attention.layer_idx)
        options |= window_option(attention)
        attended, _ = attend(attention, query, key, value, mask, dropout=0.0, scaling=attention.scaling, **options)
        shape = (query.shape[0], query.shape[2], self.heads * self.head)
        attended = attended.reshape(*shape[:2], -1).contiguous()
        if not _usable(attended, shape, query.dtype):
            raise RuntimeError(
                f"the attention function {name!r} returned {attended.dtype} of the shape {tuple(attended.shape)} where "
                f"{self._class.__name__} needs {query.dtype} of {shape}."
            )
        found: Tensor = attended
        return found

    def _supports(
        self, x: Tensor, embeddings: tuple[Tensor, ...], kernel: Kernel | None, *, together: bool = False
    ) -> bool:
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return False
        # Without faster products, only the attention of several sequences in one call is worth the calls.
        if kernel is None and not together and not self._table.has_times(self.dtype, self._shapes):
            return False
        batch, rows, _ = x.shape
        shapes = [(each.shape[0], rows, self.head) for each in embeddings]
        return (
            batch * rows > 0
            and (self._table.exact or batch * rows <= MAX_ROWS)
            and all(shape[0] in (1, batch) for shape in shapes)
            and all(_usable(each, shape, self.dtype) for each, shape in zip(embeddings, shapes, strict=True))
            and _usable(x, (batch, rows, self.hidden), self.dtype)
        )


def _usable(weight: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None) -> bool:
    return weight.dtype is dtype and weight.shape == shape and readable(weight)
