"""Builds decoder layers of a target's class from the tensors of a checkpoint.

Whether an MTP layer is the dense or the expert variant of a class is not in any config that all families share. So the
variant is chosen whose tensor names and shapes match the checkpoint.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.model_weights import expand_weights
from speculant.engines.hf.views.model_view import LayerList, find_layers
from speculant.engines.hf.views.own_layer import OwnLayer

_KINDS = ("layer_types", "layers_block_type")  # config keys with the attention kind of each layer
_FULL = {"indexer_types": "full"}  # an MTP layer has no preceding layer whose selected tokens it could share
_FUSED = re.compile(r"(.*experts)\.(gate_up_proj|gate_proj|up_proj|down_proj)")
_MASKED = ("sdpa", "eager")  # attentions that accept any mask


def build_layer(model: Any, weights: Mapping[str, Tensor], kind: str) -> OwnLayer:
    """Return a layer of the target's class with these weights.

    Args:
        model: the target.
        weights: tensors by the class's names; experts may have one tensor each.
        kind: kind of its attention as in `layer_types`, or "moe" for a layer without any.

    Raises:
        UnsupportedError: no variant of the class matches the weights; the message names the difference from the last
            one.
    """
    place = _place(model)
    config, tried, first = _make_own_config(model, kind), set[str](), ""
    for index in reversed(range(len(place))):
        layer = _empty(type(place.layers[index]), config, index)
        wanted = layer.state_dict()
        if (signature := repr(sorted((name, *each.shape) for name, each in wanted.items()))) in tried:
            continue
        tried.add(signature)
        given = _fuse(weights, wanted)
        reason = _difference(given, wanted)
        if not reason:
            layer.load_state_dict(given, assign=True)
            _fill(layer, place)
            return _wrap(model, layer, place, kind)
        first = first or reason
    raise UnsupportedError(f"its layer does not match that of {type(place.layers[-1]).__name__}: {first}")


def copy_layer(model: Any, kind: str) -> OwnLayer:
    """Return a copy of the target's last layer of a kind; quantised weights are expanded for training.

    Raises:
        UnsupportedError: it has none.
    """
    place = _place(model)
    config: Any = model.config.get_text_config(decoder=True)
    kinds = next((found for name in _KINDS if (found := getattr(config, name, None))), None)
    for index in reversed(range(len(place))):
        if kinds is None or kinds[index] == kind:
            return _wrap(model, expand_weights(copy.deepcopy(place.layers[index])), place, kind)
    raise UnsupportedError(
        f"{type(model).__name__} has no layer of kind {kind}, from which an MTP head would be built."
    )


def _place(model: Any) -> LayerList:
    found = find_layers(model)
    assert found is not None  # checked by `HFTargetParts`
    return found


def _make_own_config(model: Any, kind: str) -> Any:
    """Return a copy of the config in which every layer is of one kind and attention accepts any mask."""
    config = copy.deepcopy(model.config.get_text_config(decoder=True))
    for name in _KINDS:
        if isinstance(held := getattr(config, name, None), list | tuple):
            setattr(config, name, [kind] * len(held))
    for name, value in _FULL.items():
        if isinstance(held := getattr(config, name, None), list | tuple):
            setattr(config, name, [value] * len(held))
    if config._attn_implementation not in _MASKED:
        config._attn_implementation = "sdpa" if model._supports_sdpa else "eager"
    return config


def _empty(kind: type[nn.Module], config: Any, index: int) -> nn.Module:
    """Return a layer without storage: a second copy of a large model's layer might not fit."""
    try:
        with torch.device("meta"):
            return kind(config, index).eval()
    except Exception as error:  # classes fail in many ways on a changed config; each ends here with its reason
        raise UnsupportedError(f"{kind.__name__} cannot be built alone: {type(error).__name__}: {error}") from error


def _fuse(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stack the tensors of single experts where the class has one for all of them: [E, rows, columns]."""
    found = dict(weights)
    for name, place in wanted.items():
        match = _FUSED.fullmatch(name)
        if match is None or name in weights:
            continue
        base, whole = match.groups()
        parts = ("gate_proj", "up_proj") if whole == "gate_up_proj" else (whole,)
        names = [[f"{base}.{expert}.{part}.weight" for expert in range(len(place))] for part in parts]
        if all(each in found for part in names for each in part):
            found[name] = torch.cat([torch.stack([found.pop(each) for each in part]) for part in names], dim=1)
    return found


def _difference(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """Return the difference between given and wanted weights as a sentence; "" if there is none."""
    missing, extra = sorted(wanted.keys() - given.keys()), sorted(given.keys() - wanted.keys())
    parts = [f"it lacks {', '.join(missing[:4])}"] * bool(missing) + [f"it has {', '.join(extra[:4])}"] * bool(extra)
    for name in sorted(wanted.keys() & given.keys()):
        if wanted[name].shape != given[name].shape:
            parts.append(f"{name} has the shape {list(given[name].shape)} instead of {list(wanted[name].shape)}")
            break
    return f"{'; '.join(parts)}." if parts else ""


def _fill(layer: nn.Module, place: LayerList) -> None:
    """Fill buffers that no checkpoint has from the target's layers."""
    own = {name: buffer for each in place.layers for name, buffer in each.named_buffers()}
    for name, buffer in [*layer.named_buffers()]:
        if buffer.is_meta:
            above, _, last = name.rpartition(".")
            setattr(layer.get_submodule(above), last, own[name].clone())


def _wrap(model: Any, layer: nn.Module, place: LayerList, kind: str) -> OwnLayer:
    base = model
    for name in place.path[:-1]:
        base = getattr(base, name)
    last = place.layers[-1]
    tensors = [*last.named_parameters(), *last.named_buffers()]
    exact = {name for name, tensor in tensors if tensor.dtype is torch.float32 is not model.dtype}
    config = model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None)
    return OwnLayer(layer, getattr(base, "rotary_emb", None), kind=kind, window=window, exact=frozenset(exact))
