"""Builds a transformers model from a GGUF file: quantised matrices stay packed, all else becomes float parameters.

`plan` decides which tensor goes where; here they are read one by one. Float matrices in the model's dtype stay mapped
from the file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.errors import ModelError, OutOfMemoryError
from speculant.engines.hf.quantized.gguf.architectures import ROPE_FREQS
from speculant.engines.hf.quantized.gguf.file import GgufTensor
from speculant.engines.hf.quantized.gguf.plan import GgufPlan
from speculant.engines.hf.quantized.modules import Activations, replace_weights
from speculant.engines.hf.quantized.weight import QuantizedWeight


def read_weights(
    plan: GgufPlan, *, activations: Activations = "int8", advance: Callable[[int], object] | None = None
) -> Any:
    """Return the planned model with its weights; a plan can be used once.

    Args:
        plan: a checked plan.
        activations: whether products of quantised matrices round their inputs to 8 bits, or keep them.
        advance: called with the number of further bytes read.

    Raises:
        ModelError: a weight is not finite.
        OutOfMemoryError: there is not enough memory for the model.
    """
    plan.check_memory()
    told, model = advance or (lambda _: None), plan.model
    packed = dict[str, QuantizedWeight]()
    _fill_buffers(model)  # while weights are on "meta": the code that computes buffers also initialises weights
    _scale_rope(plan)
    try:
        for name, tensor in plan.matrices().items():
            packed[name] = tensor.read_packed(order=_order(plan, tensor))
            told(tensor.size)
        for layer in plan.experts:
            for name, values in layer.parameters(model.get_submodule(layer.path), plan.dtype).items():
                _set(model, name, values)
            told(sum(each.size for each in layer.float_tensors()))
        replace_weights(model, packed, activations=activations)
        for name, tensor in plan.floats.items():
            _set(model, name, _floats(plan, name, tensor))
            told(tensor.size)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "alloc" not in str(error):
            raise
        raise OutOfMemoryError(f"{plan.file.path} needs {plan.describe_memory()}, more than is available.") from error
    for name in plan.zeros:
        _set(model, name, torch.zeros(model.get_parameter(name).shape, dtype=plan.dtype))
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if model.config.tie_word_embeddings and isinstance(embedding._parameters.get("weight"), nn.Parameter):
        head.weight = embedding.weight
    model.config._name_or_path = str(plan.file.path)
    return model.eval()


def _order(plan: GgufPlan, tensor: GgufTensor) -> Tensor | None:
    config = plan.model.config
    return plan.architecture.row_order(
        tensor.name, tensor.shape[0], heads=config.num_attention_heads, key_heads=config.num_key_value_heads
    )


def _floats(plan: GgufPlan, name: str, tensor: GgufTensor) -> Tensor:
    """Return float weights in the model's dtype; vectors are copied, matrices stay mapped if possible."""
    values, order = tensor.floats(), _order(plan, tensor)
    values = values if order is None else values[order]
    values = values.reshape(plan.model.get_parameter(name).shape)
    if values.ndim > 1:
        return values.to(plan.dtype)
    values = plan.architecture.restore_norm(name, values.float())
    if not bool(torch.isfinite(values).all()):
        raise ModelError(f"the tensor '{tensor.name}' of {plan.file.path} is damaged: it has infinite values.")
    return values.to(plan.dtype, copy=True)


def _set(model: nn.Module, name: str, values: Tensor) -> None:
    path, _, last = name.rpartition(".")
    model.get_submodule(path)._parameters[last] = nn.Parameter(values, requires_grad=False)


def _fill_buffers(model: Any) -> None:
    """Compute the buffers that no file has, such as rotary frequencies, as transformers does when loading."""
    for module in model.modules():
        empty = [name for name, each in module._buffers.items() if each is not None and each.is_meta]
        for name in empty:
            module._buffers[name] = torch.empty_like(module._buffers[name], device="cpu")
        if empty:
            model._init_weights(module)


def _scale_rope(plan: GgufPlan) -> None:
    """Divide rotary frequencies by the factors in the file, as for Llama 3.

    Raises:
        ModelError: their number does not match.
    """
    tensor = plan.file.tensors.get(ROPE_FREQS)
    if tensor is None or ROPE_FREQS not in plan.architecture.rope:
        return
    rotary, factors = plan.model.model.rotary_emb, tensor.floats().float()
    if factors.shape != rotary.inv_freq.shape or not bool((torch.isfinite(factors) & (factors > 0)).all()):
        raise ModelError(
            f"the tensor '{ROPE_FREQS}' of {plan.file.path} does not fit: it needs {len(rotary.inv_freq)} numbers "
            "above 0. Convert the model again."
        )
    for name in ("inv_freq", "original_inv_freq"):
        if name in rotary._buffers:
            rotary._buffers[name] = rotary._buffers[name] / factors
