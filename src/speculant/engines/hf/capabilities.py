"""What a transformers model can do here: verify trees, verify chains only, or nothing, and why."""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from typing import Any

import torch

from speculant.core.engine import Capabilities
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.model_view import find_layers

TREE_ATTENTION = ("sdpa", "eager")
KNOWN_LAYERS = {"full_attention", "sliding_attention"}
WITHOUT_POSITIONS = ("alibi", "bloom", "mpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class HFCapabilities(Capabilities):
    """How drafts are verified on a transformers model.

    Attributes:
        additive: whether masks must be added to scores as floats (eager attention).
        window: positions a sliding layer sees, or None.
        mixed: whether full and sliding layers alternate, so that masks go in as a dict by layer type.
        rope_limit: the position from which on "longrope" rotates all rows of a pass by other factors, or None.
        keeps_logits: whether `logits_to_keep` can restrict the logits to the last rows.
        takes_positions: whether the model takes position ids.
    """

    additive: bool
    window: int | None
    mixed: bool
    rope_limit: int | None
    keeps_logits: bool
    takes_positions: bool


def check_model(model: Any) -> HFCapabilities:
    """Return how drafts can be verified on a transformers model.

    Raises:
        UnsupportedError: they cannot; the message says why and what to do.
    """
    config = model.config
    text = config.get_text_config(decoder=True)
    name = type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedError(f"{name} is an encoder-decoder model; Speculant decodes decoder-only causal LMs.")
    if any(getattr(config, part, None) is not None for part in ("vision_config", "audio_config")):
        raise UnsupportedError(
            f"{name} is multimodal. Load its text model alone, for instance with AutoModelForCausalLM, if it has one."
        )
    if not (hasattr(model, "can_generate") and model.can_generate()):
        raise UnsupportedError(f"{name} has no language-model head to decode with; load it with AutoModelForCausalLM.")
    layers = set(getattr(text, "layer_types", None) or ())
    if getattr(model, "_is_stateful", False) or layers - KNOWN_LAYERS:
        kinds = ", ".join(sorted(layers - KNOWN_LAYERS)) or "recurrent state"
        raise UnsupportedError(
            f"{name} has layers whose cache cannot be rolled back after a rejected draft ({kinds}). "
            "Use plain `model.generate` for it."
        )

    notes: list[str] = []
    parameters = inspect.signature(model.forward).parameters
    attention = getattr(text, "_attn_implementation", None) or "eager"
    trees = True
    if attention not in TREE_ATTENTION:
        trees = False
        notes.append(
            f"{attention} attention takes no tree mask: drafts are verified as chains. "
            "Load the model with attn_implementation='sdpa' for trees."
        )
    elif "position_ids" not in parameters or _has_alibi(text):
        trees = False
        notes.append(f"{name} takes no position ids: drafts are verified as chains.")
    quantised = getattr(config, "quantization_config", None)
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised.quant_method
        notes.append(
            f"weights are quantised ({getattr(method, 'value', method)}): kernels may differ with the number of rows, "
            "so near-ties can flip against plain decoding."
        )
    if getattr(model, "hf_device_map", None) and len(set(model.hf_device_map.values())) > 1:
        notes.append("the model is spread over several devices; every pass pays for the transfers.")
    if model.device.type == "mps":
        notes.append("MPS has not been tested.")
    if model.dtype in (torch.bfloat16, torch.float16):
        notes.append(f"{str(model.dtype).removeprefix('torch.')}: near-ties can flip against plain decoding.")

    sliding = "sliding_attention" in layers or (not layers and getattr(text, "sliding_window", None) is not None)
    place = find_layers(model)
    return HFCapabilities(
        trees=trees,
        hidden_layers=0 if place is None else len(place.layers),
        additive=attention == "eager",
        window=int(text.sliding_window) if sliding else None,
        mixed=sliding and "full_attention" in layers,
        positions=getattr(text, "max_position_embeddings", None),
        rope_limit=_rope_limit(text),
        vocabulary=text.vocab_size,
        keeps_logits="logits_to_keep" in parameters,
        takes_positions="position_ids" in parameters,
        notes=tuple(notes),
    )


def decode_mode(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Return what transformers' own decoding loop runs its passes in, where this release has it."""
    mode: contextlib.AbstractContextManager[Any] = getattr(
        model, "_optimize_model_for_decode", contextlib.nullcontext
    )()
    return mode


def _rope_limit(config: Any) -> int | None:
    """Return the smallest limit of all kinds of layers; transformers compares a pass's largest position with it."""
    given = getattr(config, "rope_parameters", None) or {}
    kinds = [given, *(kind for kind in given.values() if isinstance(kind, dict))]
    limits = [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]
    return min(limits, default=None)


def _has_alibi(config: Any) -> bool:
    attention = getattr(config, "attn_config", None)
    return bool(
        getattr(config, "alibi", False)
        or getattr(attention, "alibi", False)
        or config.model_type in WITHOUT_POSITIONS
    )  # fmt: skip
