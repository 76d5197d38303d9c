"""The attention and the MLP of each decoder layer, and views of layers without one of them.

A layer can be split if one child module is its attention and another one, the only other with matrices, its MLP, and if
it adds the output of each to its input. This is tested in a pass over two tokens in which both return zeros; every
layer must then return its input. Parallel layers and mixtures of experts pass; layers that scale their output (Gemma
4), normalise it, or compute their MLP themselves (OPT) do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from speculant.core.errors import OutOfMemoryError, UnsupportedError
from speculant.core.sublayers import Part
from speculant.engines.hf.quantized.modules import quantized_modules
from speculant.engines.hf.views.model_view import (
    attention_paths,
    decoder_config,
    find_layers,
    tap_layer,
    twin,
    view_model,
    with_forward,
)
from speculant.engines.hf.views.unwrapping import base_model


@dataclass(frozen=True, slots=True)
class LayerParts:
    """The sublayers of one layer.

    Attributes:
        names: name of each sublayer's child module.
        outputs: length of the tuple that it returns, hidden states first; None if it does not return a tuple.
    """

    names: Mapping[Part, str]
    outputs: Mapping[Part, int | None]


def whole_layers_reason(model: Any) -> str:
    """Return the reason why passes can only skip whole layers; "" if attention and MLP can be skipped separately."""
    try:
        find_layer_parts(base_model(model))
    except UnsupportedError as error:
        return str(error)
    return ""


def find_layer_parts(model: Any) -> tuple[LayerParts, ...]:
    """Find the sublayers of each decoder layer and test them in a pass over two tokens.

    Raises:
        UnsupportedError: a layer cannot be split; the message gives the reason.
    """
    place = find_layers(model)
    if place is None:
        raise UnsupportedError("its decoder layers were not found")
    config = decoder_config(model)
    names = [_find_children(layer, config) for layer in place.layers]
    outputs: list[dict[Part, int | None]] = [{} for _ in names]
    broken = list[int]()
    changed = {}
    for index, layer in enumerate(place.layers):
        silent = {
            name: tap_layer(getattr(layer, name), partial(_silence, outputs[index], part))
            for part, name in names[index].items()
        }
        changed[index] = _watch(twin(layer, modules=silent), partial(broken.append, index))
    tokens = torch.tensor([[1, 2]], device=model.device)  # the embedding of one, as padding, may be zero
    try:
        with torch.no_grad():
            view = view_model(model, place.path, changed)
            view(input_ids=tokens, past_key_values=DynamicCache(config=config), use_cache=True, return_dict=True)
    except (UnsupportedError, OutOfMemoryError):
        raise
    except Exception as error:  # classes may fail in any way on zeros
        raise UnsupportedError(f"a pass without them failed: {type(error).__name__}: {error}") from error
    if broken or not all(len(each) == len(names[0]) for each in outputs):
        raise UnsupportedError("its layers do more than to add the outputs of attention and MLP to their input")
    return tuple(LayerParts(own, found) for own, found in zip(names, outputs, strict=True))


def split_layer(layer: nn.Module, running: nn.Module, parts: LayerParts, only: Part) -> nn.Module:
    """Return a view of a layer that runs only one sublayer.

    Args:
        layer: the model's own layer, whose class runs.
        running: the layer that a pass would run, which may be a shadow; its children run.
        parts: the layer's sublayers.
        only: the sublayer that runs.
    """
    children = {name: getattr(running, name) for name, child in layer._modules.items() if child is not None}
    [skipped] = (part for part in parts.names if part != only)
    name, outputs = parts.names[skipped], parts.outputs[skipped]

    def forward(*args: Any, **options: Any) -> Any:
        zeros = torch.zeros_like(args[0] if args else options["hidden_states"])
        return zeros if outputs is None else (zeros, *[None] * (outputs - 1))

    return twin(layer, modules=children | {name: with_forward(children[name], forward)})


def _find_children(layer: nn.Module, config: Any) -> dict[Part, str]:
    paths = attention_paths(layer, config)
    kind = type(layer).__name__
    if len(paths) != 1 or len(paths[0]) != 1:
        raise UnsupportedError(f"{kind} has no child module that is its only attention")
    [(attention,)] = paths
    others = [name for name, child in layer.named_children() if name != attention and _has_matrices(child)]
    if len(others) != 1:
        raise UnsupportedError(f"{kind} has no child module that is its MLP")
    return {"attention": attention, "mlp": others[0]}


def _has_matrices(module: nn.Module) -> bool:
    return any(weight.ndim > 1 for weight in module.parameters()) or any(True for _ in quantized_modules(module))


def _silence(outputs: dict[Part, int | None], part: Part, output: Any) -> Any:
    """Record the form of a sublayer's output; return zeros of that form."""
    outputs[part] = len(output) if isinstance(output, tuple) else None
    return (torch.zeros_like(output[0]), *output[1:]) if isinstance(output, tuple) else torch.zeros_like(output)


def _watch(layer: nn.Module, report: Callable[[], object]) -> nn.Module:
    """Return a view of a layer that reports if it does not return its input."""

    def forward(*args: Any, **options: Any) -> Any:
        output = layer(*args, **options)
        found = output[0] if isinstance(output, tuple) else output
        given: Tensor = args[0] if args else options["hidden_states"]
        if not isinstance(found, Tensor) or not torch.equal(found, given):
            report()
        return output

    return with_forward(layer, forward)
