"""MTP modules from their own models' checkpoints, from `speculators`' checkpoints, and in this project's own layout.

The own layout is a config of `model_type` "mtp" and the names in `MtpHead` itself. `speculators` (FastMTP, Cai et al.
2025, arXiv 2509.18362) fine-tunes a model's single module, which drafts all depths; embeddings and projection are the
target's. As in vLLM, it reads the target's states after the final norm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, load_weights
from speculant.drafters.heads.checkpoints.fitting import check_hidden_size, check_vocabulary
from speculant.drafters.heads.checkpoints.speculators import layer_config
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.mtp.head import MtpHead
from speculant.drafters.heads.mtp.layouts import SPECULATORS, MtpLayout, find_layout
from speculant.drafters.heads.mtp.module import MtpModule
from speculant.drafters.heads.target_layer import TargetLayer

_FORMAT = "mtp"
_SHARED = ("embed_tokens.weight", "lm_head.weight", "verifier_norm.weight", "verifier_lm_head.weight")  # the target's
_COMPUTED = ("rotary_emb.inv_freq",)  # stored in some checkpoints, but computed from the config


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is in the own layout or in that of `speculators`."""
    return _FORMAT in (checkpoint.config.get("model_type"), checkpoint.config.get("speculators_model_type"))


def load(checkpoint: Checkpoint, target: TargetParts) -> MtpHead:
    """Return the head from the own layout or that of `speculators`; raises the same errors as `load_head`."""
    if "speculators_model_type" in checkpoint.config:
        return _load_speculators(checkpoint, target)
    check_hidden_size(checkpoint, target, int(checkpoint.value("hidden_size")))
    check_vocabulary(checkpoint, target, int(checkpoint.value("vocab_size")))
    model_type = str(getattr(target.config, "model_type", ""))
    if (trained := str(checkpoint.value("target_model_type"))) != model_type:
        raise UnsupportedError(
            f"the head in {checkpoint.source} has layers of {trained}, but the target is a {model_type}: it was "
            "trained for another model. Name the target it was trained for."
        )
    modules = []
    for n in range(int(checkpoint.value("modules"))):
        prefix = f"mtp.{n}."
        inner = f"{prefix}layers.0.layer."
        tensors = checkpoint.tensors.items()
        weights = {name.removeprefix(inner): each for name, each in tensors if name.startswith(inner)}
        layer = target.new_layer(weights, str(checkpoint.value("layer_type")))
        modules.append(MtpModule(target, [layer], hidden_first=bool(checkpoint.value("hidden_first"))))
    head = MtpHead(modules)
    load_weights(head, checkpoint, checkpoint.tensors)
    return head


def save(head: MtpHead, folder: Path, target: TargetParts) -> None:
    """Write a head with one layer per module into a folder, in the own layout."""
    module = head.module(0)
    layer = module.layers[0]
    assert isinstance(layer, TargetLayer)
    config: dict[str, Any] = {
        "model_type": _FORMAT,
        "architectures": ["MtpHead"],
        "target_model_type": getattr(target.config, "model_type", ""),
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocabulary,
        "modules": len(head),
        "layer_type": layer.kind,
        "hidden_first": module.hidden_first,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    save_file({name: each.contiguous() for name, each in head.state_dict().items()}, folder / "model.safetensors")


def _load_speculators(checkpoint: Checkpoint, target: TargetParts) -> MtpHead:
    """Return a head of `speculators`; raises the same errors as `load_head`."""
    layers = layer_config(checkpoint)
    model_type = str(getattr(target.config, "model_type", ""))
    if (trained := str(layers.get("model_type"))) != model_type:
        raise UnsupportedError(
            f"the head in {checkpoint.source} has layers of {trained}, but the target is a {model_type}: it was "
            "trained for another model. Name the target it was trained for."
        )
    check_hidden_size(checkpoint, target, int(layers["hidden_size"]))
    check_vocabulary(checkpoint, target, int(layers["vocab_size"]))
    if (count := int(checkpoint.config.get("num_nextn_predict_layers", 1))) != 1:
        raise UnsupportedError(
            f"config.json of the head in {checkpoint.source} sets 'num_nextn_predict_layers' to {count}; this format "
            "has one module."
        )
    tensors = {name: each for name, each in checkpoint.tensors.items() if name not in _SHARED}
    try:
        return load_native(Checkpoint(checkpoint.source, {}, tensors), target, SPECULATORS)
    except UnsupportedError as error:
        raise UnsupportedError(f"the head in {checkpoint.source} does not fit its target: {error}") from error


def load_native(checkpoint: Checkpoint, target: TargetParts, layout: MtpLayout | None = None) -> MtpHead:
    """Return the head contained in a model's own checkpoint.

    Args:
        checkpoint: checkpoint of the model, with only its MTP tensors, by plain names and in floating point.
        target: the model.
        layout: layout of the names; None for that of the target's family.

    Raises:
        UnsupportedError: the layout is unknown, or a tensor is missing, unexpected or of another shape.
    """
    if layout is None:
        layout = find_layout(str(getattr(target.config, "model_type", "")), checkpoint.tensors, target.layers)
    tensors = {name: each for name, each in checkpoint.tensors.items() if not name.endswith(_COMPUTED)}
    modules, used = list[MtpModule](), set[str]()
    kinds = dict(enumerate(getattr(target.config, "mtp_layer_types", None) or ()))
    for n in range(len(tensors)):
        places = [(prefix.format(n=n, L=target.layers + n), kinds.get(n, kind)) for prefix, kind in layout.layers]
        if used & {name for name in tensors if name.startswith(places[0][0])}:
            break  # the layout has only one module
        if not any(name.startswith(places[0][0]) for name in tensors):
            break
        own = _name_around(layout, target, n, tensors)
        used |= set(own.values())
        layers = []
        for prefix, kind in places:
            names = [name for name in tensors if name.startswith(prefix) and name not in own.values()]
            weights = {_rename(name.removeprefix(prefix), layout): tensors[name] for name in names}
            layers.append(target.new_layer(weights, kind))
            used |= set(names)
        modules.append(_module(layout, target, layers, {part: tensors[name] for part, name in own.items()}))
    if extra := sorted(tensors.keys() - used):
        raise UnsupportedError(f"there are {', '.join(extra[:4])}, which their layout does not have.")
    return MtpHead(modules, depth=layout.depth)


def _name_around(layout: MtpLayout, target: TargetParts, n: int, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the checkpoint's names for the parts of module n around its layers, by their names in `MtpModule`."""
    parts = {"enorm": layout.enorm, "hnorm": layout.hnorm, "eh_proj": layout.projection, "norm": layout.norm or ""}
    parts |= {"embed_tokens": layout.embeddings, "lm_head": layout.output}
    found = {}
    for part, template in parts.items():
        for each in ("weight", "bias"):
            name = f"{template}.{each}".format(n=n, L=target.layers + n)
            if template and name in tensors:
                found[f"{part}.{each}"] = name
    return found


def _rename(name: str, layout: MtpLayout) -> str:
    for part, other in layout.renamed:
        name = name.replace(part, other)
    return name


def _module(layout: MtpLayout, target: TargetParts, layers: Sequence[nn.Module], own: dict[str, Tensor]) -> MtpModule:
    """Return a module with its weights; copies of the target's weights are left out."""
    like = target.projection()
    if (held := own.get("embed_tokens.weight")) is not None:
        ids = torch.arange(target.vocabulary, device=like.device)
        if _same(held[: target.vocabulary], target.embed(ids)):
            del own["embed_tokens.weight"]
    if (held := own.get("lm_head.weight")) is not None and _same(held[: target.vocabulary], like):
        del own["lm_head.weight"]
    module = MtpModule(
        target,
        layers,
        hidden_first=layout.hidden_first,
        norm=layout.norm is not None,
        bias="eh_proj.bias" in own,
        embeddings="embed_tokens.weight" in own,
        output="lm_head.weight" in own,
    )
    around = {name: each for name, each in module.state_dict().items() if not name.startswith("layers.")}
    for name, wanted in around.items():
        if name not in own or own[name].shape != wanted.shape:
            found = "is missing" if name not in own else f"has the shape {list(own[name].shape)}"
            raise UnsupportedError(f"{name} {found}, where the target's sizes give {list(wanted.shape)}.")
    if unknown := sorted(own.keys() - around.keys()):
        raise UnsupportedError(f"there are {', '.join(unknown)}, which {type(module).__name__} has no place for.")
    module.load_state_dict(own, strict=False, assign=True)
    return module


def _same(copied: Tensor, held: Tensor) -> bool:
    return copied.shape == held.shape and torch.equal(copied.to(held), held)
