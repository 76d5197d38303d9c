"""RMSNorm in one call of compiled code instead of six operations: the norm after the last fused layer.

It rounds like the norms of fused layers, and a row's result is the same for any number of rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from speculant.engines.hf.cpu.decoder_layer import FusedLayer
from speculant.engines.hf.cpu.layer_structs import LayerArguments
from speculant.engines.hf.cpu.linear import readable


class AcceleratedNorm:
    """The forward of one RMSNorm. Its weight is looked up in every call, so a new one takes effect at once."""

    __slots__ = ("_class", "_forward", "module", "native")

    def __init__(self, module: Any, native: ctypes.CDLL) -> None:
        self.module, self.native = module, native
        self._class, self._forward = type(module), type(module).forward

    def __call__(self, shadow: Any, hidden_states: Tensor) -> Tensor:
        """Return [..., hidden] of [..., hidden]."""
        x = hidden_states
        norm = self.arguments(x.dtype)
        supported = (
            norm is not None
            and x.is_cpu
            and x.shape[-1:] == (norm.hidden,)
            and x.is_contiguous()
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
        )
        if norm is None or not supported:
            answer: Tensor = type(self.module).forward(shadow, x)
            return answer
        y = torch.empty_like(x)
        self.native.norm(ctypes.byref(norm), x.data_ptr(), y.data_ptr(), x.numel() // norm.hidden)
        return y

    def arguments(self, dtype: torch.dtype) -> LayerArguments | None:
        """Return the struct for inputs of a dtype; None if the weight or the class no longer suits."""
        module, weight = self.module, self.module._parameters.get("weight")
        kind = type(module)
        if kind is not self._class or kind.forward is not self._forward or weight is None or weight.dtype is not dtype:
            return None
        if not readable(weight) or weight.ndim != 1:
            return None
        return LayerArguments(
            input_norm=weight.data_ptr(),
            hidden=len(weight),
            input_eps=module.variance_epsilon,
            is_bf16=dtype is torch.bfloat16,
        )


def find_norms(model: nn.Module, layers: Iterable[FusedLayer]) -> tuple[AcceleratedNorm, ...]:
    """Return the norms of a model outside its fused layers that are of the same class as theirs."""
    within = {id(part) for layer in layers for part in layer.modules}
    natives = {type(layer.module.input_layernorm): layer.native for layer in layers}
    found = (module for module in model.modules() if type(module) in natives and id(module) not in within)
    return tuple(AcceleratedNorm(module, natives[type(module)]) for module in found if "forward" not in vars(module))
