"""Fused layers: decoder layers of the Llama family with all but their attention in two calls of compiled code.

Between two operations of PyTorch a pass over few rows reads megabytes of weights, which throw everything else out of
the caches, the operations' own code as well. So it is their number that costs, forty and more a layer; `layer.cpp`
leaves the cache's update, the attention and two calls.

The layers are told by the classes that transformers gives them and their parts. Each part must be as it came: one with
hooks, with another forward, type of weights or adapter leaves its layer to transformers' own code. Weights are looked
up before every pass, so changed ones count at once.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from speculant.targets.linears import FastLinear, readable

_NAMES = ("llama", "mistral", "qwen2", "qwen3")
FAMILIES = {f"transformers.models.{name}.modeling_{name}": name.title() for name in _NAMES}
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class _Linear(ctypes.Structure):
    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p))


class _Layer(ctypes.Structure):
    """The `Layer` of layer.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("before", "after", "q_norm", "k_norm")),
        *((name, _Linear) for name in LINEARS),
        *((name, ctypes.c_int64) for name in ("hidden", "heads", "kv_heads", "head", "inner")),
        *((name, ctypes.c_float) for name in ("before_eps", "after_eps", "q_norm_eps", "k_norm_eps")),
    )


class FusedLayer:
    """The forward of one decoder layer."""

    def __init__(self, module: Any, native: ctypes.CDLL) -> None:
        """Take a layer of the family."""
        attention, mlp = module.self_attn, module.mlp
        self.module, self._native, self._attention = module, native, attention
        self._norms, self._linears = _norms(module), _linears(module)
        self._parts = (module, attention, mlp, mlp.act_fn, *self._norms.values(), *self._linears.values())
        hidden, head = self._linears["q_proj"].in_features, attention.head_dim
        wide, narrow, inner = (self._linears[name].out_features for name in ("q_proj", "k_proj", "up_proj"))
        self._layer = _Layer(hidden=hidden, heads=wide // head, kv_heads=narrow // head, head=head, inner=inner)
        for name, norm in self._norms.items():
            setattr(self._layer, f"{name}_eps", norm.variance_epsilon)
        # What transformers makes of the config; another shape is somebody else's doing.
        shapes = [(wide, hidden), (narrow, hidden), (narrow, hidden), (hidden, wide)]
        shapes += [(inner, hidden), (inner, hidden), (hidden, inner)]
        self._shapes: dict[str, tuple[int, ...]] = dict(zip(LINEARS, shapes, strict=True))
        self._sizes = {name: head if name in ("q_norm", "k_norm") else hidden for name in self._norms}

    @property
    def weights(self) -> int:
        """How many weights the largest matrix has."""
        return max(math.prod(shape) for shape in self._shapes.values())

    def ready(self) -> bool:
        """Look the weights up; say whether the layer and its parts are still what the code does."""
        if not all(map(_untouched, self._parts)):
            return False
        layer = self._layer
        for name, norm in self._norms.items():
            if not _usable(norm.weight, (self._sizes[name],)):
                return False
            setattr(layer, name, norm.weight.data_ptr())
        for name, linear in self._linears.items():
            weight, bias, shape = linear.weight, linear.bias, self._shapes[name]
            if not (_usable(weight, shape) and (bias is None or _usable(bias, shape[:1]))):
                return False
            setattr(layer, name, _Linear(weight.data_ptr(), None if bias is None else bias.data_ptr()))
        return True

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
        """Return [B, n, hidden] of [B, n, hidden]."""
        attention, layer = self._attention, self._layer
        attend = ALL_ATTENTION_FUNCTIONS.get(attention.config._attn_implementation)
        options |= {"position_ids": position_ids, "use_cache": use_cache}
        if attend is None or not self._fits(hidden_states, position_embeddings):
            answer: Tensor = type(self.module).forward(
                self.module,
                hidden_states,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                position_embeddings=position_embeddings,
                **options,
            )
            return answer
        assert position_embeddings is not None
        batch, rows, _ = hidden_states.shape
        x, (cos, sin), threads = hidden_states, position_embeddings, torch.get_num_threads()
        query = x.new_empty((batch, layer.heads, rows, layer.head))
        key, value = (x.new_empty((batch, layer.kv_heads, rows, layer.head)) for _ in range(2))
        turned = (cos.data_ptr(), sin.data_ptr())
        made = (query.data_ptr(), key.data_ptr(), value.data_ptr())
        shared = cos.shape[0] == 1
        self._native.enter(ctypes.byref(layer), x.data_ptr(), *turned, *made, batch, rows, shared, threads)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, attention.layer_idx)
        attended, _ = attend(
            attention, query, key, value, attention_mask, dropout=0.0, scaling=attention.scaling, **options
        )
        attended, y = attended.contiguous(), torch.empty_like(x)
        self._native.leave(ctypes.byref(layer), x.data_ptr(), attended.data_ptr(), y.data_ptr(), batch * rows, threads)
        return y

    def _fits(self, x: Tensor, turned: tuple[Tensor, Tensor] | None) -> bool:
        if turned is None or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or self.module.training:
            return False
        batch, rows, _ = x.shape
        layer = self._layer
        places = (turned[0].shape[0], rows, layer.head)
        return (
            batch * rows <= self._native.most_rows()
            and places[0] in (1, batch)
            and all(_usable(each, places) for each in turned)
            and _usable(x, (batch, rows, layer.hidden))
        )


def fused_layers(model: Any, native: ctypes.CDLL, least: int) -> tuple[FusedLayer, ...]:
    """Return the layers that the code can do, if their largest matrix has at least `least` weights."""
    layers = (FusedLayer(module, native) for module in model.modules() if _known(module))
    return tuple(layer for layer in layers if layer.weights >= least and layer.ready())


def _known(layer: Any) -> bool:
    """Say whether a module is a decoder layer of the family with nothing but what the family has."""
    family = FAMILIES.get(type(layer).__module__)
    if family is None or type(layer).__name__ != f"{family}DecoderLayer":
        return False
    attention, mlp = layer.self_attn, layer.mlp
    parts = {"Attention": [attention], "MLP": [mlp], "RMSNorm": list(_norms(layer).values())}
    for kind, modules in parts.items():
        names = {(type(module).__module__, type(module).__name__) for module in modules}
        if names != {(type(layer).__module__, family + kind)}:
            return False
    plain = attention.config._attn_implementation == "sdpa" and type(mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")
    return plain and all(type(linear) is nn.Linear for linear in _linears(layer).values())


def _norms(layer: Any) -> dict[str, Any]:
    norms = {"before": layer.input_layernorm, "after": layer.post_attention_layernorm}
    named = {f"{name}_norm": getattr(layer.self_attn, f"{name}_norm", None) for name in "qk"}
    return norms | {name: norm for name, norm in named.items() if norm is not None}


def _linears(layer: Any) -> dict[str, Any]:
    return {name: getattr(layer.self_attn if name in LINEARS[:4] else layer.mlp, name) for name in LINEARS}


def _untouched(module: nn.Module) -> bool:
    """Say whether nobody listens to a module or has put another forward in its place."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return not hooks and isinstance(module.__dict__.get("forward"), FastLinear | FusedLayer | None)


def _usable(weight: Tensor, shape: tuple[int, ...]) -> bool:
    return weight.dtype is torch.float32 and weight.shape == shape and readable(weight)
