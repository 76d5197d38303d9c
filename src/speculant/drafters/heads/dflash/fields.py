"""The config fields of DFlash's family that define how a block is run; fields that are not understood are rejected.

The same things have several names. `dflash_config` overrides the top level; in speculators' layout the layers are
described in `transformer_layer_config`.

| what | z-lab, SpecForge, ModelOpt, JetSpec | DeepSpec | speculators |
|---|---|---|---|
| a slot drafts the token after it | `shift_label` (Domino); DSpark always | always | `sample_from_anchor` |
| a slot sees those before it only | `is_causal`, `causal`, `causal_head`; else sliding layers | the same | \
sliding layers, unless `sliding_window_non_causal` |
| windows | `layer_types` and `sliding_window`; `use_swa` and `swa_window_size` | the same | `layer_types` |
| corrections | `projector_type`: domino, dspark, dflash2 | `markov_rank` | the kind itself |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.dflash.shape import MARKOV_KINDS, Convolution, Domino, Selector

PROJECTORS = (None, "dflash", "dflash2", "domino", "dspark")
_READ = frozenset(
    (
        *("mask_token_id", "target_layer_ids", "block_size", "projector_type", "sample_from_anchor", "shift_label"),
        *("causal", "causal_head", "is_causal", "use_swa", "swa_window_size", "layer_types", "sliding_window"),
        *("markov_rank", "markov_head_type", "confidence_head_with_markov", "enable_confidence_head"),
        *("use_confidence_head", "pure_draft_prefix_len", "emb_dim", "gru_hidden_dim"),
        *("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"),
        *("output_multiplier", "final_logit_softcapping", "input_embedding_scale", "sliding_window_non_causal"),
        *("attention_mode", "confidence_head_alpha", "num_anchors", "num_target_layers"),  # used only in training
    )
)
_FIXED: Mapping[str, tuple[object, ...]] = {  # fields with one supported meaning; None counts as missing
    "use_aux_hidden_state": (True,),
    "is_neox_style": (True,),
    "logit_scale": (1, 1.0),
    "attention_sink_bias": (False,),
    "add_swa_attention_sink_bias": (False,),
    "draft_ffn_type": ("dense",),
}
_FORMULA = ("causal", "multiplier", "softcap", "sink", "conv_", "selector", "residual", "embedding_scale")


def check_fields(checkpoint: Checkpoint, own: Mapping[str, Any], given: Mapping[str, Any], hidden: int) -> None:
    """Reject fields that change the formula and are not understood.

    Args:
        checkpoint: the checkpoint, for messages.
        own: `dflash_config`, in which every field is checked.
        given: all fields, of which those with suspicious names are checked.
        hidden: the target's hidden size.

    Raises:
        UnsupportedError: there is such a field; the message names it.
    """
    for name, value in {**given, **own}.items():
        if name in _FIXED:
            wrong = value is not None and value not in _FIXED[name]
        elif name == "target_hidden_size":
            wrong = value is not None and value != hidden
        elif name in _READ:
            wrong = False
        else:
            wrong = value not in (None, False) and (name in own or any(part in name for part in _FORMULA))
        if wrong:
            raise _refuse(checkpoint, f"sets {name!r} to {value!r} in its config, which is not supported")
    if (projector := given.get("projector_type")) not in PROJECTORS:
        raise _refuse(
            checkpoint,
            f"has a 'projector_type' of {projector!r}; known types are {', '.join(map(str, PROJECTORS[1:]))}",
        )


def causal_everywhere(checkpoint: Checkpoint, given: Mapping[str, Any]) -> bool | None:
    """Return whether all layers are causal within the block; None if the layers' types decide it.

    Raises:
        UnsupportedError: two fields contradict each other.
    """
    found = {name: bool(given[name]) for name in ("is_causal", "causal", "causal_head") if given.get(name) is not None}
    if len(set(found.values())) > 1:
        said = ", ".join(f"{name!r} {value}" for name, value in found.items())
        raise _refuse(checkpoint, f"contradicts itself in its config: {said}. Keep the one it was trained with")
    return next(iter(found.values()), None)


def read_layers(
    checkpoint: Checkpoint, given: Mapping[str, Any], *, speculators: bool, transformers: bool
) -> dict[str, Any]:
    """Return the layers, windows and causal flags of a BlockShape.

    Args:
        checkpoint: checkpoint whose tensors have the head's names.
        given: all fields.
        speculators: whether it is in speculators' layout.
        transformers: whether it is in transformers' own layout.

    Raises:
        UnsupportedError: the config does not describe the layers that the weights have, or lacks a window.
    """
    count = len({name.split(".")[1] for name in checkpoint.tensors if name.startswith("layers.")})
    types = given.get("layer_types") or ["full_attention"] * count
    if len(types) != count:
        raise UnsupportedError(
            f"the head in {checkpoint.source} has the weights of {count} layers, but its config describes "
            f"{len(types)}; it may be truncated."
        )
    if unknown := sorted(set(types) - {"full_attention", "sliding_attention"}):
        raise _refuse(checkpoint, f"has layers of type {', '.join(unknown)} (layer_types), which are not supported")
    sliding = [each == "sliding_attention" for each in types]
    everywhere = causal_everywhere(checkpoint, given)
    if everywhere is not None:
        causal = [everywhere] * count
    elif speculators:
        apart = given.get("sliding_window_non_causal", given.get("speculators_model_type") == "dflash2")
        causal = [each and not apart for each in sliding]
    else:
        causal = [each and not transformers for each in sliding]
    if given.get("use_swa") and not any(sliding):
        sliding = [True] * count
    window = None
    if any(sliding):
        window = int(given.get("swa_window_size") or Checkpoint(checkpoint.source, given, {}).value("sliding_window"))
        window += transformers  # its masks count only positions other than the token's own
    windows = tuple(window if each else None for each in sliding)
    return {"layers": count, "windows": windows if any(sliding) else (), "causal": tuple(causal) if any(causal) else ()}


def is_anchored(given: Mapping[str, Any], *, deepspec: bool) -> bool:
    """Return whether a slot drafts the token after it.

    Args:
        given: all fields.
        deepspec: whether the tensors are in DeepSpec's layout, or from a Markov head outside of speculators'.
    """
    if (found := given.get("sample_from_anchor")) is not None:
        return bool(found)
    if given.get("projector_type") == "domino":
        return bool(given.get("shift_label", False))
    return deepspec or "dspark" in (given.get("speculators_model_type"), given.get("projector_type"))


def read_corrections(checkpoint: Checkpoint, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the corrections of the logits, and the convolutions, as fields of a BlockShape.

    Raises:
        UnsupportedError: a size is missing, or the kind of a Markov head is unknown.
    """
    flat, names, found = Checkpoint(checkpoint.source, given, {}), checkpoint.tensors, dict[str, Any]()
    markov, confidence = (names.get(f"{name}.weight") for name in ("markov_head.markov_w1", "confidence_head.proj"))
    rank = int(given.get("markov_rank") or 0) if markov is None else markov.shape[1]
    if rank:
        kind = str(given.get("markov_head_type", "vanilla"))
        if kind not in MARKOV_KINDS:
            raise _refuse(checkpoint, f"has a Markov head of type {kind!r}; known types are {', '.join(MARKOV_KINDS)}")
        found |= {"markov": rank, "markov_kind": kind}
    if confidence is not None or given.get("enable_confidence_head") or given.get("use_confidence_head"):
        reads = confidence is not None and confidence.shape[1] > _hidden(names)
        found |= {"confidence": True, "confidence_markov": bool(given.get("confidence_head_with_markov", reads))}
    if given.get("projector_type") == "domino" or _any(names, "domino_head."):
        found["domino"] = Domino(
            state=int(flat.value("gru_hidden_dim")),
            inner=int(flat.value("emb_dim")),
            plain=int(given.get("pure_draft_prefix_len") or 0),
        )
    if given.get("projector_type") == "dflash2" or _any(names, "candidate_selector."):
        kernel, group = (int(flat.value(name)) for name in ("conv_kernel_size", "conv_group_size"))
        width, candidates = (int(flat.value(name)) for name in ("selector_rank", "selector_top_k"))
        if group < 1 or _hidden(names) % group:
            raise _refuse(checkpoint, f"has a 'conv_group_size' of {group}, which does not divide its hidden size")
        found["convolution"] = Convolution(taps=kernel, group=group)
        found["selector"] = Selector(rank=width, candidates=candidates)
        if (scale := given.get("input_embedding_scale", 1.0)) is not None:
            found["scale"] = float(scale)
    elif given.get("input_embedding_scale") is not None:
        found["scale"] = float(given["input_embedding_scale"])
    return found


def _hidden(tensors: Mapping[str, Any]) -> int:
    return int(tensors["fc.weight"].shape[0])


def _any(names: Mapping[str, Any], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in names)


def _refuse(checkpoint: Checkpoint, reason: str) -> UnsupportedError:
    return UnsupportedError(f"the head in {checkpoint.source} {reason}. Use another checkpoint.")
