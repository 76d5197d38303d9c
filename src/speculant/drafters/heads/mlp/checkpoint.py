"""Checkpoints of MLP speculators, as published by IBM and read by vLLM (foundation-model-stack/fms-extras).

`speculator.{emb, proj, head, ln}.{step}.weight`, and `.bias` for the norms. If `tie_weights` says that steps share
weights, the shared ones may be written once or for every step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, load_weights
from speculant.drafters.heads.checkpoints.fitting import check_hidden_size, check_vocabulary
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.mlp.head import MLPHead, MLPShape

_PREFIX = "speculator."
_STEP = re.compile(r"(emb|proj|head|ln)\.(\d+)\.(weight|bias)")
_CANDIDATES = (5, 4, 3, 2)  # candidates per step for the authors' beams; 1 for later steps


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is an MLP speculator."""
    if "speculators_model_type" in checkpoint.config:
        return False
    named = any(name.startswith(f"{_PREFIX}emb.") for name in checkpoint.tensors)
    return named or checkpoint.config.get("model_type") == "mlp_speculator"


def load(checkpoint: Checkpoint, target: TargetParts) -> MLPHead:
    """Return the head; raises the same errors as `load_head`."""
    tensors = {name.removeprefix(_PREFIX): tensor for name, tensor in checkpoint.tensors.items()}
    config = checkpoint.config
    tied, shape = bool(config.get("tie_weights", False)), _shape(checkpoint, tensors)
    check_hidden_size(checkpoint, target, shape.hidden)
    check_vocabulary(checkpoint, target, shape.vocabulary)
    if tied:
        tensors = _untie(checkpoint, tensors, shape.steps)
    head = MLPHead(shape)
    load_weights(head, checkpoint, tensors, names={name: _PREFIX + name for name in head.state_dict()})
    return head


def save(head: MLPHead, folder: Path, target: TargetParts) -> None:
    """Write a head's config and weights into a folder; shared weights are written once."""
    shape = head.shape
    config: dict[str, Any] = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "emb_dim": shape.hidden,
        "inner_dim": shape.inner,
        "vocab_size": target.vocabulary,
        "n_predict": shape.steps,
        "tie_weights": shape.tied,
        "scale_input": shape.scaled,
        "top_k_tokens_per_head": [*_CANDIDATES, *[1] * shape.steps][: shape.steps],
        "n_candidates": 5,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    tensors = {_PREFIX + name: parameter.detach().contiguous() for name, parameter in head.named_parameters()}
    save_file(tensors, folder / "model.safetensors")


def _shape(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> MLPShape:
    config = checkpoint.config
    for name in ("emb.0.weight", "proj.0.weight"):
        if name not in tensors:
            raise UnsupportedError(f"the head in {checkpoint.source} lacks {_PREFIX}{name}: it may be truncated.")
    counted = 1 + max(int(found[2]) for name in tensors if (found := _STEP.fullmatch(name)))
    inner, hidden = tensors["proj.0.weight"].shape
    for name, size in (("emb_dim", hidden), ("inner_dim", inner)):
        given = config.get(name)
        if given and int(given) != size:
            raise UnsupportedError(
                f"config.json of the head in {checkpoint.source} gives {name} {given} where its weights have {size}: "
                "one of the two belongs to another head."
            )
    return MLPShape(
        hidden=hidden,
        inner=inner,
        vocabulary=len(tensors["emb.0.weight"]),
        steps=int(config.get("n_predict") or counted),  # a wrong count is reported by the names of missing weights
        tied=bool(config.get("tie_weights", False)),
        scaled=bool(config.get("scale_input", False)),
    )


def _untie(checkpoint: Checkpoint, tensors: Mapping[str, Tensor], steps: int) -> dict[str, Tensor]:
    """Return the tensors with shared weights repeated under every step's name."""
    found = dict(tensors)
    for part, kinds in (("emb", ("weight",)), ("proj", ("weight",)), ("head", ("weight",)), ("ln", ("weight", "bias"))):
        first = 1 if part == "proj" else 0
        for kind in kinds:
            source = f"{part}.{first}.{kind}"
            for step in range(first + 1, steps) if source in found else ():
                name = f"{part}.{step}.{kind}"
                if name in found and not found[name].equal(found[source]):
                    raise UnsupportedError(
                        f"the head in {checkpoint.source} shares weights between its steps, says its config, but "
                        f"{_PREFIX}{name} differs from {_PREFIX}{source}."
                    )
                found[name] = found[source]
    return found
