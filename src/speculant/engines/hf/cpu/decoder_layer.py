"""Fused layers: decoder layers of the Llama family in one call of compiled code, or in two around their attention.

Between two operations of PyTorch a pass over few rows reads megabytes of weights, which throw everything else out of
the caches, the operations' own code as well. So it is their number that costs, forty and more a layer. Where heads
share keys and the cache has room, `layer.cpp` leaves a single one; elsewhere the cache's update and the attention stay
what they are.

Which layers these are says `known_layers.py`. Each part must be as it came: one with hooks, with another forward, type
of weights or adapter leaves its layer to transformers' own code. All of this is looked up in every call, so changes
count at once.
"""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from speculant.engines.hf.batch_attention import BatchCache
from speculant.engines.hf.cache import InPlaceLayer
from speculant.engines.hf.cpu.gqa import Attention, GroupedAttention, prepared
from speculant.engines.hf.cpu.layer_matching import LINEARS, Part, is_known, turning_functions, window_option
from speculant.engines.hf.cpu.linear import most_rows, readable


class _Linear(ctypes.Structure):
    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p))


class _Layer(ctypes.Structure):
    """The `Layer` of layer.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("before", "after", "q_norm", "k_norm")),
        *((name, _Linear) for name in LINEARS),
        *((name, ctypes.c_int64) for name in ("hidden", "inner")),
        *((name, ctypes.c_float) for name in ("before_eps", "after_eps", "q_norm_eps", "k_norm_eps")),
        ("narrow", ctypes.c_int),
    )


class _Positions(ctypes.Structure):
    """The `Positions` of layer.cpp."""

    _fields_ = (("cos", ctypes.c_void_p), ("sin", ctypes.c_void_p), ("shared", ctypes.c_int))


class FusedLayer:
    """The forward of one decoder layer."""

    def __init__(self, module: Any, native: ctypes.CDLL) -> None:
        """Take a layer of the family."""
        attention, mlp = module.self_attn, module.mlp
        self.module, self._attention = module, attention
        self._native = native
        self._most = most_rows(native)
        self._kind, self._forward = type(module), type(module).forward
        linears = {name: getattr(attention if name in LINEARS[:4] else mlp, name) for name in LINEARS}
        hidden, head = linears["q_proj"].in_features, attention.head_dim
        wide, narrow, inner = (linears[name].out_features for name in ("q_proj", "k_proj", "up_proj"))
        self._layer = _Layer(hidden=hidden, inner=inner)
        self._heads, self._kv_heads, self._head = wide // head, narrow // head, head
        # What transformers makes of the config; another shape is somebody else's doing.
        shapes: list[tuple[int, ...]] = [(wide, hidden), (narrow, hidden), (narrow, hidden), (hidden, wide)]
        shapes += [(inner, hidden), (inner, hidden), (hidden, inner)]
        self._linears = [(name, linears[name], shape) for name, shape in zip(LINEARS, shapes, strict=True)]
        norms = {"before": module.input_layernorm, "after": module.post_attention_layernorm}
        norms |= {name: attention._modules[name] for name in ("q_norm", "k_norm") if name in attention._modules}
        self._norms = [(name, norm, (head if name.endswith("norm") else hidden,)) for name, norm in norms.items()]
        self._parts = [
            Part(owner, name, part, type(part), type(part).forward)
            for owner in (module, attention, mlp)
            for name, part in owner._modules.items()
            if part is not None
        ]
        self._home = sys.modules[self._kind.__module__]
        self._turning = turning_functions(self._home)
        self._taken: list[Any] = []
        self._dtype = torch.float32

    @property
    def weights(self) -> int:
        """How many weights the largest matrix has."""
        return max(math.prod(shape) for _, _, shape in self._linears)

    def ready(self) -> list[Tensor] | None:
        """Look the weights up and return them; None if the layer or a part of it is no longer what the code does."""
        kind = type(self.module)
        if (
            kind is not self._kind
            or kind.forward is not self._forward
            or turning_functions(self._home) != self._turning
        ):
            return None
        if not all(part.untouched() for part in self._parts):
            return None
        weights: list[Tensor] = []
        dtype: torch.dtype | None = None
        taken: list[Any] = []
        for _, norm, shape in self._norms:
            weight = norm._parameters.get("weight")
            if weight is None or not _usable(weight, shape, dtype or weight.dtype):
                return None
            dtype = weight.dtype
            weights.append(weight)
            taken += (weight.data_ptr(), norm.variance_epsilon)
        for _, linear, outs_and_k in self._linears:
            weight, bias = linear._parameters.get("weight"), linear._parameters.get("bias")
            usable = weight is not None and _usable(weight, outs_and_k, dtype)
            if not usable or not (bias is None or _usable(bias, outs_and_k[:1], dtype)):
                return None
            weights += (weight,) if bias is None else (weight, bias)
            taken += (weight.data_ptr(), 0 if bias is None else bias.data_ptr())
        taken.append(dtype)
        if taken != self._taken:
            self._take(taken)
        return weights

    def _take(self, taken: list[Any]) -> None:
        left = iter(taken)
        for name, _, _ in self._norms:
            setattr(self._layer, name, next(left))
            setattr(self._layer, f"{name}_eps", next(left))
        for name, _, _ in self._linears:
            setattr(self._layer, name, _Linear(next(left), next(left) or None))
        self._dtype = next(left)
        self._layer.narrow = self._dtype is torch.bfloat16
        self._taken = taken

    def __call__(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **options: Any,
    ) -> Tensor:
        """Return [B, n, hidden] of [B, n, hidden].

        Raises:
            RuntimeError: an attention function gave something else than the model can go on with.
        """
        attention, layer = self._attention, ctypes.byref(self._layer)
        attend = ALL_ATTENTION_FUNCTIONS.get(attention.config._attn_implementation)
        if isinstance(past_key_values, BatchCache):
            attend = past_key_values.attend
        options |= {"position_ids": position_ids, "use_cache": use_cache}
        weights = self.ready()  # held until the end, if others exchange them meanwhile
        fits = weights and attend and position_embeddings and self._fits(hidden_states, position_embeddings)
        if not fits or position_embeddings is None:
            answer: Tensor = type(self.module).forward(
                self.module,
                hidden_states,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                position_embeddings=position_embeddings,
                **options,
            )
            return answer
        batch, rows, _ = hidden_states.shape
        x, (cos, sin), threads = hidden_states, position_embeddings, torch.get_num_threads()
        y = torch.empty_like(x)
        positions = ctypes.byref(_Positions(cos.data_ptr(), sin.data_ptr(), cos.shape[0] == 1))
        shape = (batch, self._heads, rows, self._head)
        if isinstance(attend, GroupedAttention):
            call = self._whole(shape, past_key_values, attention_mask, options)
            if call is not None:
                self._native.layer(layer, x.data_ptr(), positions, ctypes.byref(call), y.data_ptr(), threads)
                return y
        query = x.new_empty(shape)
        key, value = (x.new_empty((batch, self._kv_heads, rows, self._head)) for _ in range(2))
        heads = (self._heads, self._kv_heads, rows, rows, self._head)
        pointers = (query.data_ptr(), key.data_ptr(), value.data_ptr(), None, None)
        call = Attention(*pointers, batch, *heads, *key.stride()[:2], *value.stride()[:2])
        self._native.enter(layer, x.data_ptr(), positions, ctypes.byref(call), threads)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, attention.layer_idx)
        options |= window_option(attention)
        attended, _ = attend(
            attention, query, key, value, attention_mask, dropout=0.0, scaling=attention.scaling, **options
        )
        width = self._heads * self._head
        attended = attended.reshape(batch, rows, -1).contiguous()
        if not _usable(attended, (batch, rows, width), x.dtype):
            raise RuntimeError(
                f"the attention function {attention.config._attn_implementation!r} gave {attended.dtype} of the shape "
                f"{tuple(attended.shape)} where {self._kind.__name__} needs {x.dtype} of {(batch, rows, width)}."
            )
        self._native.leave(layer, x.data_ptr(), attended.data_ptr(), y.data_ptr(), batch * rows, width, threads)
        return y

    def _whole(self, shape: tuple[int, ...], cache: Any, mask: Tensor | None, options: dict[str, Any]) -> Any:
        """Return the attention of a layer that is one call, its rows added to the cache; None where it is not."""
        index = self._attention.layer_idx
        held = cache.layers[index] if type(cache) is DynamicCache and index < len(cache.layers) else None
        if not isinstance(held, InPlaceLayer) or not held.is_initialized or held.keys.shape[0] != shape[0]:
            return None
        if not GroupedAttention.grouped(self._attention, shape, held.keys, mask, options):
            return None
        if held.keys.dtype is not self._dtype:
            return None
        before = held.keys.shape[2]
        rows = held.extend(shape[2])
        if rows is None:
            return None
        call = prepared(shape, *rows, mask, self._attention.scaling)
        if call is None:
            held.keep(before, [])
        return call

    def _fits(self, x: Tensor, turned: tuple[Tensor, Tensor]) -> bool:
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return False
        if self.module.training or self._attention.training:
            return False
        batch, rows, _ = x.shape
        places = (turned[0].shape[0], rows, self._head)
        return (
            batch * rows <= self._most[self._dtype]
            and places[0] in (1, batch)
            and all(_usable(each, places, self._dtype) for each in turned)
            and _usable(x, (batch, rows, self._layer.hidden), self._dtype)
        )


def fused_layers(model: Any, native: ctypes.CDLL, least: int) -> tuple[FusedLayer, ...]:
    """Return the layers that the code can do, if their largest matrix has at least `least` weights."""
    layers = (FusedLayer(module, native) for module in model.modules() if is_known(module))
    return tuple(layer for layer in layers if layer.weights >= least and layer.ready() is not None)


def _usable(weight: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None) -> bool:
    return weight.dtype is dtype and weight.shape == shape and readable(weight)
