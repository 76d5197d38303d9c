"""The parts of a quantised model: which weights are packed, and a model built from packed weights and floats.

The linear layers and experts of the decoder layers, the embedding and the output head are packed, since every pass
reads them. Norms, biases, expert routers, convolutions, and the image and audio parts stay floats.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.errors import ModelNotFoundError, UnsupportedError
from speculant.engines.hf.quantized.experts import expert_weights, is_experts
from speculant.engines.hf.quantized.modules import Activations, replace_weights
from speculant.engines.hf.quantized.packed_module import PackedModule
from speculant.engines.hf.quantized.weight import OUTS, QuantizedWeight
from speculant.engines.hf.views.model_view import find_layers

_ROUTERS = ("gate", "router", "shared_expert_gate")  # small, and rounding would route tokens to other experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The weights of a model.

    Attributes:
        weights: packed matrices by the names of the parameters that they replace; tied ones once.
        floats: all other parameters and persistent buffers by name.
        orders: Int64 [k], by the name of a packed matrix: the order in which it takes its inputs, if permuted.
    """

    weights: Mapping[str, QuantizedWeight]
    floats: Mapping[str, Tensor]
    orders: Mapping[str, Tensor] = field(default_factory=dict)


def matrices(model: Any) -> list[str]:
    """Return the names of a float model's parameters to pack; for tied ones the first.

    Raises:
        UnsupportedError: the decoder layers were not found.
    """
    place = find_layers(model)
    if place is None:
        raise UnsupportedError(
            f"the decoder layers of {type(model).__name__} were not found, so its weights are not quantised; leave "
            "out `quantize`."
        )
    wanted = [
        layer
        for layer_name, layer in place.layers.named_modules()
        if type(layer) is nn.Linear and layer_name.rpartition(".")[2] not in _ROUTERS
    ]
    wanted += [each for each in (model.get_input_embeddings(), model.get_output_embeddings()) if _is_plain(each)]
    chosen = {id(each.weight) for each in wanted}
    return [name for name, parameter in model.named_parameters() if id(parameter) in chosen]


def quantizable_experts(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """Return a float model's modules of experts, by name, if there are products for them."""
    for path, module in model.named_modules():
        if is_experts(module):
            try:
                found = expert_weights(module)
            except UnsupportedError:  # it has its own gates or norms
                continue
            count = len(module._parameters["down_proj"])
            if all(len(each) % (count * OUTS) == 0 for each in found.values()):
                yield path, module


def _is_plain(module: Any) -> bool:
    """Return whether there is a quantised module for an embedding or output head."""
    return type(module) in (nn.Linear, nn.Embedding) or type(module).__name__.endswith("ScaledWordEmbedding")


def named_floats(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Return the parameters and persistent buffers of a model that are not packed, by name; shared ones once."""
    yield from model.named_parameters()
    for path, module in model.named_modules():
        if not isinstance(module, PackedModule):
            for name, buffer in module._buffers.items():
                if buffer is not None and name not in module._non_persistent_buffers_set:
                    yield (f"{path}.{name}" if path else name), buffer


def empty_model(config: Any, kind: Any, *, dtype: torch.dtype, attention: str | None = None) -> Any:
    """Return a model with unwritten parameters, which take no memory until they are written.

    Args:
        config: a transformers config.
        kind: transformers' class for it, such as AutoModelForCausalLM.
        dtype: dtype of the parameters.
        attention: transformers' attn_implementation; None for its default.
    """
    from transformers.initialization import no_init_weights

    with no_init_weights():
        model = kind.from_config(config, dtype=dtype, attn_implementation=attention)
    model.tie_weights()
    return model.eval()


def assemble(
    parts: Parts, model: Any, *, dtype: torch.dtype, activations: Activations = "int8", source: str = "the checkpoint"
) -> Any:
    """Put packed weights and floats into an empty model, and return it.

    Args:
        parts: parts of the model.
        model: an empty model, which is changed.
        dtype: dtype of floats, except those that the class keeps in float32.
        activations: whether the products round their inputs to 8 bits.
        source: origin of the weights, for messages.

    Raises:
        ModelNotFoundError: a weight is missing, or has another shape.
        UnsupportedError: a packed weight does not belong to a linear layer or embedding.
    """
    for name, order in parts.orders.items():
        _check_order(name, order, parts.weights[name])
    held = dict(named_floats(model))
    packed = {id(held[name]) for name in parts.weights if name in held}
    for path in {name.rpartition(".")[0] for name in parts.weights if name not in held}:
        packed |= {id(held[each]) for each in (f"{path}.gate_up_proj", f"{path}.down_proj") if each in held}
    missing = [name for name, each in held.items() if name not in parts.floats and id(each) not in packed]
    if missing:
        raise ModelNotFoundError(
            f"{source} has no {missing[0]}" + f", nor {len(missing) - 1} others" * bool(missing[1:])
        )
    for name, value in parts.floats.items():
        if name not in held:
            continue
        if held[name].shape != value.shape:
            shapes = f"{tuple(value.shape)} instead of {tuple(held[name].shape)}"
            raise ModelNotFoundError(f"{name} in {source} has the shape {shapes}")
        wanted = value.dtype if not value.is_floating_point() else _dtype(model, name, dtype)
        held[name].data = value.detach().to(wanted)
    replace_weights(model, parts.weights, activations=activations)
    for name, order in parts.orders.items():
        path, _, place = name.removesuffix(".weight").rpartition(".")
        parent = model.get_submodule(path)
        parent._modules[place] = nn.Sequential(InputOrder(order), parent._modules[place])
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


class InputOrder(nn.Module):
    """Permutes inputs to the order of a matrix whose inputs the checkpoint sorted by importance."""

    def __init__(self, order: Tensor) -> None:
        super().__init__()
        self.register_buffer("order", order, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., k] of [..., k]."""
        return x.index_select(-1, self.get_buffer("order"))


def _check_order(name: str, order: Tensor, weight: QuantizedWeight) -> None:
    if not torch.equal(order.sort().values, torch.arange(weight.k)):
        raise ModelNotFoundError(f"the order of inputs of {name} is not a permutation of {weight.k} inputs")


def _dtype(model: Any, name: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a parameter in a model with this dtype."""
    always = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    return torch.float32 if any(re.search(rf"(^|\.){each}(\.|$)", name) for each in always) else dtype
