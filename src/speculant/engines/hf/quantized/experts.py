"""Mixture-of-experts modules with quantised matrices: only the experts selected by a pass's rows are read.

transformers stores the matrices of all experts of a layer as 3-D parameters; classes differ in the order of their axes
and rows (`use_experts_implementation`). Here each projection is one quantised matrix with the outputs of all experts
concatenated: [E * outs, k]. The computation between the products, the gate and its limits, is the class's own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.packed_module import PackedModule
from speculant.engines.hf.quantized.products import Activations, native
from speculant.engines.hf.quantized.weight import OUTS, GroupScales, QuantizedArguments, QuantizedWeight

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class ExpertsArguments(ctypes.Structure):
    """The struct `Experts` of experts.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("gate", "up", "down", "gate_up_bias", "down_bias")),
        *((name, ctypes.c_int64) for name in ("count", "hidden", "inner")),
        *((name, ctypes.c_float) for name in ("alpha", "limit")),
        *((name, ctypes.c_int) for name in ("limited", "interleaved", "keep", "is_bf16")),
    )


def is_experts(module: Any) -> bool:
    """Return whether a module holds the experts of a layer in 3-D parameters."""
    down = module._parameters.get("down_proj")
    return down is not None and down.ndim == 3 and hasattr(module, "is_transposed")


def expert_weights(module: Any) -> dict[str, Tensor]:
    """Return the float matrices of a layer's experts, [E * outs, k] by their names in `PROJECTIONS`.

    These matrices are quantised; `replace_weights` takes them by these names, prefixed by the module's.

    Raises:
        UnsupportedError: the class computes something that the compiled code does not, between or after the products.
    """
    if not (_has_silu_gate(module) or _has_limited_gate(module)) or getattr(module, "has_post_expert_norm", False):
        raise UnsupportedError(
            f"{type(module).__name__} has gates or norms of its own; leave its experts in the model's dtype."
        )

    def rows(weight: Tensor) -> Tensor:
        return weight.transpose(1, 2) if module.is_transposed else weight

    both = rows(module.gate_up_proj)
    gate, up = both.chunk(2, dim=1) if module.is_concatenated else (both[:, ::2], both[:, 1::2])
    return dict(zip(PROJECTIONS, (each.flatten(0, 1) for each in (gate, up, rows(module.down_proj))), strict=True))


def _has_silu_gate(module: Any) -> bool:
    own = getattr(type(module), "_apply_gate", None)
    plain = own is not None and own.__qualname__ == "_default_apply_gate" and own.__module__.startswith("transformers.")
    return plain and module.has_gate and type(module.act_fn).__name__ in ("SiLU", "SiLUActivation")


def _has_limited_gate(module: Any) -> bool:
    home = type(module).__module__
    return type(module).__name__ == "GptOssExperts" and home.startswith("transformers.") and module.limit is not None


class QuantizedExperts(PackedModule):
    """The experts of one layer, replacing the class's own module."""

    def __init__(
        self, source: nn.Module, weights: Mapping[str, QuantizedWeight], *, activations: Activations = "int8"
    ) -> None:
        """Take over the experts of a module, which gives up its matrices.

        Args:
            source: the class's module; its weights may be on the device "meta".
            weights: [E * outs, k], by the names in `expert_weights`.
            activations: whether the products round their inputs to 8 bits.

        Raises:
            UnsupportedError: a matrix is missing, has another shape, or cannot be divided between the experts.
        """
        shapes = {name: tuple(weight.shape) for name, weight in expert_weights(source).items()}
        given = {name: (weight.outs, weight.k) for name, weight in weights.items()}
        if shapes != given:
            raise UnsupportedError(
                f"the experts of {type(source).__name__} have {shapes} weights, but the file has {given}."
            )
        down: Any = source._parameters["down_proj"]
        super().__init__(dict(weights), dtype=down.dtype)
        self.num_experts, self.activations = len(down), activations
        if uneven := [name for name, (outs, _) in shapes.items() if outs % (len(down) * OUTS)]:
            raise UnsupportedError(f"experts whose outputs are not a multiple of {OUTS} are not quantised: {uneven}.")
        for name in ("gate_up_proj", "up_proj", "down_proj"):
            source._parameters.pop(name, None)
        self.source = source.requires_grad_(False)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return the experts' output for rows, [n, hidden].

        Args:
            hidden_states: [n, hidden].
            top_k_index: Int64[n, k], the experts of each row.
            top_k_weights: [n, k], weights of their outputs.
        """
        if hidden_states.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError("no gradient flows through quantised experts; train on the model's own weights.")
        x, chosen = hidden_states.detach().to(self.dtype).contiguous(), top_k_index.long().contiguous()
        weights, y, arguments = top_k_weights.detach().float().contiguous(), torch.empty_like(x), self._arguments()
        sizes = (len(x), chosen.shape[-1], torch.get_num_threads())
        pointers = (ctypes.byref(arguments), *(each.data_ptr() for each in (x, chosen, weights, y)))
        native().experts(*pointers, *sizes)
        return y.to(hidden_states.dtype)

    def _arguments(self) -> ExpertsArguments:
        """Return the struct for the compiled code. Biases are looked up in every call."""
        if self._structs is None:
            count = self.num_experts
            self._structs = [
                (QuantizedArguments * count)(
                    *(part_of(self.matrices[name], each, count).arguments() for each in range(count))
                )
                for name in PROJECTIONS
            ]
        source: Any = self.source
        biases = [source._parameters.get(name) for name in ("gate_up_proj_bias", "down_proj_bias")]
        down, limited = self.matrices["down_proj"], _has_limited_gate(source)
        return ExpertsArguments(
            *(ctypes.addressof(each) for each in self._structs),
            *(None if bias is None else bias.data_ptr() for bias in biases),
            self.num_experts, down.outs // self.num_experts, down.k,
            *((source.alpha, source.limit) if limited else (0.0, 0.0)),
            limited, not source.is_concatenated, self.activations == "float", self.dtype is torch.bfloat16,
        )  # fmt: skip


def part_of(weight: QuantizedWeight, number: int, count: int) -> QuantizedWeight:
    """Return one of `count` equal parts of a matrix's rows, sharing its memory."""

    def own(part: Tensor | None) -> Tensor | None:
        return None if part is None else part.chunk(count)[number]

    def scales(given: GroupScales) -> GroupScales:
        return GroupScales(numbers=given.numbers.chunk(count)[number], factors=own(given.factors))

    return replace(
        weight,
        outs=weight.outs // count,
        values=weight.values.chunk(count)[number],
        scales=scales(weight.scales),
        minima=None if weight.minima is None else scales(weight.minima),
    )
