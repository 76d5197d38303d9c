"""Checkpoints of Medusa heads: four layouts, recognised by the names of their weights.

- The authors' Medusa-1 (FasterDecoding/Medusa): `{head}.{block}.linear.weight`, `{head}.{blocks}.weight`. Blocks of a
  head are one module used several times, so they are all equal.
- The same without projections, `"version": "2"`: the target's is used (text-generation-inference reads these, too).
- Medusa-2, a whole fine-tuned model with `medusa_head.` before these names. Only the heads are loaded. ModelOpt writes
  `medusa_heads.`, also together with the model.
- vLLM's: `blocks.{head}.layers.{block}.weight`, `lm_heads.{head}.weight` or one `lm_head.weight`, `token_map`.

Heads and blocks are counted from the names; configs are known to be wrong (the authors' 13B says 2 heads, and has 5).
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Literal

from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, load_weights
from speculant.drafters.heads.checkpoints.fitting import check_hidden_size, check_vocabulary
from speculant.drafters.heads.checkpoints.paths import read_paths, write_paths
from speculant.drafters.heads.checkpoints.repeats import are_equal, save_weights
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.medusa.head import MedusaHead, MedusaShape

logger = logging.getLogger(__name__)
_HEADS = "medusa_heads."
_OWN, _VLLM = re.compile(r"(\d+)\.(\d+)\.linear\.weight"), re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.weight")


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is in one of these layouts."""
    return any(
        name.startswith("medusa_head.") or any(each.fullmatch(name.removeprefix(_HEADS)) for each in (_OWN, _VLLM))
        for name in checkpoint.tensors
    )


def load(checkpoint: Checkpoint, target: TargetParts) -> MedusaHead:
    """Return the heads; raises the same errors as `load_head`."""
    if any(name.startswith("medusa_head.") for name in checkpoint.tensors):
        checkpoint = _heads_of_model(checkpoint, "medusa_head.")
    elif any(name.startswith(_HEADS) and _OWN.fullmatch(name.removeprefix(_HEADS)) for name in checkpoint.tensors):
        checkpoint = _heads_of_model(checkpoint, _HEADS)
    elif not any(_OWN.fullmatch(name) for name in checkpoint.tensors):
        return _load_vllm(checkpoint.without(_HEADS), target)
    tensors = checkpoint.tensors
    heads, blocks = _count(checkpoint, _OWN)
    hidden = tensors["0.0.linear.weight"].shape[0] if "0.0.linear.weight" in tensors else target.hidden_size
    check_hidden_size(checkpoint, target, hidden)
    own = any(f"{head}.{blocks}.weight" in tensors for head in range(heads))
    vocabulary = tensors[f"0.{blocks}.weight"].shape[0] if f"0.{blocks}.weight" in tensors else target.vocabulary
    check_vocabulary(checkpoint, target, vocabulary)
    parts = ("linear.weight", "linear.bias")
    shared = all(are_equal(tensors, [f"{head}.{block}." for block in range(blocks)], parts) for head in range(heads))
    found = MedusaHead(
        MedusaShape(
            hidden=hidden,
            vocabulary=vocabulary,
            heads=heads,
            blocks=blocks,
            shared=shared,
            projection="own" if own else "target",
        )
    )
    load_weights(found, checkpoint, tensors)
    found.paths = read_paths(checkpoint, "medusa_choices", found.paths, heads)
    return found


def save(head: MedusaHead, folder: Path, target: TargetParts) -> None:
    """Write heads in the authors' layout, in safetensors.

    Raises:
        UnsupportedError: the layout cannot represent them, because they came from one of vLLM's.
    """
    shape = head.shape
    if shape.projection == "one" or head.ids is not None or shape.scale != 1 or not shape.bias:
        raise UnsupportedError(
            "these Medusa heads have one projection for all, a reduced vocabulary, scaled logits or blocks without "
            "biases, which only vLLM's layout can hold; keep the files they were loaded from."
        )
    config: dict[str, object] = {
        "medusa_num_heads": shape.heads,
        "medusa_num_layers": shape.blocks,
        "hidden_size": shape.hidden,
        "vocab_size": target.vocabulary,
        "medusa_choices": write_paths(head.paths),
    }
    config |= {"version": "2"} if shape.projection == "target" else {}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    save_weights(head, folder / "medusa_lm_head.safetensors")


def _heads_of_model(checkpoint: Checkpoint, prefix: str) -> Checkpoint:
    """Return only the heads from a whole model's checkpoint."""
    tensors = {name.removeprefix(prefix): t for name, t in checkpoint.tensors.items() if name.startswith(prefix)}
    if len(tensors) < len(checkpoint.tensors) and prefix != _HEADS:
        logger.warning(
            "%s is a whole model that was trained together with its Medusa heads (Medusa-2). Only the heads are taken "
            "from it: they fit that model best, so load it as the target, too.",
            checkpoint.source,
        )
    return Checkpoint(checkpoint.source, checkpoint.config, tensors)


def _load_vllm(checkpoint: Checkpoint, target: TargetParts) -> MedusaHead:
    tensors = dict(checkpoint.tensors)
    heads, blocks = _count(checkpoint, _VLLM)
    token_map = tensors.pop("token_map", None)
    truncated = int(checkpoint.config.get("truncated_vocab_size") or target.vocabulary)
    ids = None if token_map is None or truncated >= target.vocabulary else token_map.long()
    one = bool(checkpoint.config.get("original_lm_head", False)) or "lm_head.weight" in tensors
    if one and "lm_heads.0.weight" in tensors:
        tensors["lm_head.weight"] = tensors.pop("lm_heads.0.weight")
    projection: Literal["one", "own"] = "one" if one else "own"
    if ids is not None:  # vLLM writes whole projections in addition to a map, and uses the rows it lists
        _check_ids(checkpoint, target, ids)
        for name in [each for each in tensors if each.startswith("lm_head")]:
            if len(tensors[name]) > len(ids):
                tensors[name] = tensors[name][ids]
    hidden = next(tensor.shape[0] for name, tensor in tensors.items() if _VLLM.fullmatch(name))
    check_hidden_size(checkpoint, target, hidden)
    vocabulary = next((len(t) for name, t in tensors.items() if name.startswith("lm_head")), target.vocabulary)
    if ids is None:
        check_vocabulary(checkpoint, target, vocabulary)
    shape = MedusaShape(
        hidden=hidden,
        vocabulary=len(ids) if ids is not None else vocabulary,
        heads=heads,
        blocks=blocks,
        shared=False,
        bias=any(name.endswith(".bias") for name in tensors),
        projection=projection,
        scale=float(checkpoint.config.get("logit_scale", 1.0)),
    )
    found = MedusaHead(shape, ids=ids)
    names = {name: _vllm_name(name, blocks, one=one) for name in found.state_dict()}
    public = set(names.values())
    known = {name: tensors[names[name]] for name in names if names[name] in tensors}
    load_weights(found, checkpoint, known | {n: t for n, t in tensors.items() if n not in public}, names=names)
    found.paths = read_paths(checkpoint, "medusa_choices", found.paths, heads)
    return found


def _vllm_name(name: str, blocks: int, *, one: bool) -> str:
    """Return vLLM's name for a weight."""
    head, part, *rest = name.split(".")
    if int(part) == blocks:
        return "lm_head.weight" if one else f"lm_heads.{head}.weight"
    return f"blocks.{head}.layers.{part}.{rest[-1]}"


def _check_ids(checkpoint: Checkpoint, target: TargetParts, ids: Tensor) -> None:
    if len(ids) == 0 or int(ids.min()) < 0 or int(ids.max()) >= target.vocabulary or len(set(ids.tolist())) < len(ids):
        raise UnsupportedError(
            f"the token_map of the head in {checkpoint.source} names tokens beyond the target's "
            f"{target.vocabulary}, or "
            "one of them twice: it was trained for another model, or is damaged."
        )


def _count(checkpoint: Checkpoint, pattern: re.Pattern[str]) -> tuple[int, int]:
    """Return the numbers of heads and of blocks per head, counted from the names of a checkpoint's weights."""
    found = [match for name in checkpoint.tensors if (match := pattern.fullmatch(name))]
    if not found:
        raise UnsupportedError(f"the head in {checkpoint.source} has no residual blocks: it may be truncated.")
    return 1 + max(int(match[1]) for match in found), 1 + max(int(match[2]) for match in found)
