"""Checkpoints of EAGLE-3 and P-EAGLE in the layout of vllm-project/speculators.

`config.json` gives the kind as `speculators_model_type`, describes the layers in `transformer_layer_config`, and gives
boundaries in `eagle_aux_hidden_state_layer_ids`. The first layer is `layers.0`. Embeddings and output projection that
are shared with the target may be missing, or NaN. Missing flags are false, as in the library's config class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.checkpoints.tapped_layers import KEY, default_taps, from_boundaries
from speculant.drafters.heads.eagle3.head import Eagle3Head
from speculant.drafters.heads.eagle3.weights import build_head, read_flags
from speculant.drafters.heads.head import TargetParts

_VERIFIER = ("verifier_norm.weight", "verifier_lm_head.weight")  # copies of the target's, used in training
_DEPTH = 8  # for P-EAGLE heads whose config gives none


def matches_eagle3(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is EAGLE-3 in this layout."""
    return checkpoint.config.get("speculators_model_type") == "eagle3"


def matches_p_eagle(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is P-EAGLE in this layout."""
    return checkpoint.config.get("speculators_model_type") == "peagle"


def load(checkpoint: Checkpoint, target: TargetParts) -> Eagle3Head:
    """Return the head; raises the same errors as `load_head`."""
    layers = layer_config(checkpoint)
    own = {name: value for name, value in checkpoint.config.items() if name != "transformer_layer_config"}
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in _VERIFIER}
    if matches_p_eagle(checkpoint) and "mask_hidden" not in tensors:
        raise UnsupportedError(f"the head in {checkpoint.source} lacks mask_hidden, which P-EAGLE drafts from.")
    boundaries = checkpoint.config.get(KEY)
    return build_head(
        Checkpoint(checkpoint.source, checkpoint.config, tensors),
        target,
        config=layers | {"draft_vocab_size": checkpoint.value("draft_vocab_size")},
        flags=read_flags(checkpoint, own, layers),
        taps=from_boundaries(checkpoint, target, boundaries) if boundaries else default_taps(checkpoint, target),
        depth=speculated_tokens(checkpoint, _DEPTH),
    )


def layer_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return `transformer_layer_config`, with a single rotary embedding even if it has one per kind of attention.

    Raises:
        UnsupportedError: it is missing.
    """
    found = dict(checkpoint.value("transformer_layer_config"))
    rope: Mapping[str, Any] = found.get("rope_parameters") or {}
    if "sliding_attention" in rope:  # used for all layers, as in the library
        found["rope_parameters"] = rope["sliding_attention"]
    return found


def speculated_tokens(checkpoint: Checkpoint, default: int) -> int:
    """Return the number of tokens that a checkpoint's config proposes to draft."""
    methods = (checkpoint.config.get("speculators_config") or {}).get("proposal_methods") or []
    return next((int(each["speculative_tokens"]) for each in methods if each.get("speculative_tokens")), default)
