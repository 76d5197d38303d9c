"""Checkpoints of Gemma 4 assistants, as published by Google: `gemma4_assistant`, and the 12B's unified form.

`text_config` describes the layers like those of the targets; all of them share keys and values. The embeddings are tied
to the output projection, and used only for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.assistant.head import AssistantHead
from speculant.drafters.heads.assistant.layers import AssistantShape
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, load_weights
from speculant.drafters.heads.checkpoints.fitting import check_hidden_size, check_vocabulary
from speculant.drafters.heads.checkpoints.read_layers import KINDS, read_layers
from speculant.drafters.heads.head import TargetParts

MODEL_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")
_TARGETS = ("gemma4_text", "gemma4_unified_text")
_TIED = "lm_head.weight"  # a copy of the embeddings, if present
_UNUSED = ("k_proj.weight", "k_norm.weight", "v_proj.weight", "v_norm.weight")  # in layers that read others' keys
_CLUSTERS = {"num_centroids": 2048, "centroid_intermediate_top_k": 32}  # transformers' defaults
_REQUIRED: Mapping[str, tuple[object, ...]] = {  # fields and their supported values; None stands for a missing field
    "attention_bias": (None, False),
    "enable_moe_block": (None, False),
    "hidden_activation": (None, "gelu_pytorch_tanh"),
    "hidden_size_per_layer_input": (None, 0),
    "tie_word_embeddings": (None, True),
    "use_bidirectional_attention": (None, "vision"),  # applies to media, which no draft contains
    "use_double_wide_mlp": (None, False),
}
_FORMULA = (  # parts of the names of fields that change the forward pass
    *("activation", "attention", "attn", "bias", "cap", "centroid", "embed", "expert", "head", "hidden", "layer"),
    *("logit", "mlp", "moe", "norm", "project", "residual", "rope", "rotary", "scal", "shared", "window"),
)
_KNOWN = frozenset(
    (
        *("backbone_hidden_size", "use_ordered_embeddings", *_CLUSTERS, *_REQUIRED),
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "layer_types"),
        *("global_head_dim", "num_global_key_value_heads", "attention_k_eq_v", "per_layer_config", "sliding_window"),
        *("rms_norm_eps", "rope_parameters", "final_logit_softcapping", "num_kv_shared_layers"),
        # without effect on a draft, or for experts and per-layer inputs, which are not used
        *("attention_dropout", "max_position_embeddings", "output_attentions", "output_hidden_states"),
        *("num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size"),
        *("vocab_size_per_layer_input", "attn_implementation", "_attn_implementation"),
    )
)


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is a Gemma 4 assistant."""
    return checkpoint.config.get("model_type") in MODEL_TYPES


def load(checkpoint: Checkpoint, target: TargetParts) -> AssistantHead:
    """Return the head; raises the same errors as `load_head`."""
    model_type = getattr(target.config, "model_type", "")
    if model_type not in _TARGETS:
        raise UnsupportedError(
            f"the head in {checkpoint.source} is a Gemma 4 assistant, which reads keys and values of a Gemma 4 model, "
            f"but the target is a {model_type}. Name the target it was trained for, or another head."
        )
    check_hidden_size(checkpoint, target, int(checkpoint.value("backbone_hidden_size")))
    text: Any = checkpoint.value("text_config")
    if not isinstance(text, Mapping):
        raise UnsupportedError(f"text_config of the head in {checkpoint.source} is not a JSON object.")
    check_vocabulary(checkpoint, target, int(_value(checkpoint, text, "vocab_size")))
    for config in (checkpoint.config, text):
        _check_fields(checkpoint, config)
    head = AssistantHead(_shape(checkpoint, text, target))
    tensors = dict(checkpoint.tensors)
    if (copied := tensors.pop(_TIED, None)) is not None and not torch.equal(
        copied, tensors.get("model.embed_tokens.weight", copied)
    ):
        raise UnsupportedError(
            f"the head in {checkpoint.source} has {_TIED} that differs from its embeddings, though its config ties "
            "them; one of the two is wrong."
        )
    load_weights(head, checkpoint, tensors, ignored=[name for name in tensors if name.endswith(_UNUSED)])
    if head.masked_embedding is not None:
        _check_order(checkpoint, head.masked_embedding.token_ordering)
    return head


def _shape(checkpoint: Checkpoint, text: Mapping[str, Any], target: TargetParts) -> AssistantShape:
    """Return the sizes given by a config."""
    kinds = tuple(_value(checkpoint, text, "layer_types"))
    count, shared = int(_value(checkpoint, text, "num_hidden_layers")), text.get("num_kv_shared_layers")
    if len(kinds) != count or shared not in (None, 0, count) or not set(kinds) <= set(KINDS):
        raise UnsupportedError(
            f"the head in {checkpoint.source} has {count} layers of the kinds {', '.join(kinds)}, of which {shared} "
            f"read the target's keys; only layers of the kinds {' and '.join(KINDS)} that all read them are supported."
        )
    heads, vocabulary = int(_value(checkpoint, text, "num_attention_heads")), target.vocabulary
    centroids = best = 0
    if checkpoint.config.get("use_ordered_embeddings"):
        centroids, best = (int(checkpoint.value(name, default)) for name, default in _CLUSTERS.items())
        if not 0 < best <= centroids or vocabulary % centroids:
            raise UnsupportedError(
                f"the head in {checkpoint.source} divides {vocabulary} tokens into {centroids} clusters, of which it "
                f"reads {best}: clusters must have equal sizes, and it cannot read more than there are."
            )
    return AssistantShape(
        hidden=int(_value(checkpoint, text, "hidden_size")),
        target_hidden=target.hidden_size,
        inner=int(_value(checkpoint, text, "intermediate_size")),
        heads=heads,
        vocabulary=vocabulary,
        kinds=kinds,
        read=read_layers(checkpoint, text, target, heads),
        eps=float(text.get("rms_norm_eps") or 1e-6),
        cap=text.get("final_logit_softcapping"),
        centroids=centroids,
        best=best,
    )


def _check_fields(checkpoint: Checkpoint, config: Mapping[str, Any]) -> None:
    """Reject fields that change the forward pass in an unknown way."""
    for name, value in config.items():
        if name in _REQUIRED:
            known = value in _REQUIRED[name]
        else:
            known = name in _KNOWN or not value or not any(part in name for part in _FORMULA)
        if not known:
            raise UnsupportedError(
                f"config.json of the head in {checkpoint.source} sets {name!r} to {value!r:.40}, which changes its "
                "forward pass in a way that is not supported."
            )


def _check_order(checkpoint: Checkpoint, order: Tensor) -> None:
    if not torch.equal(order.sort().values, torch.arange(len(order))):
        raise UnsupportedError(
            f"the head in {checkpoint.source} has masked_embedding.token_ordering that does not name each token once; "
            "the file is damaged."
        )


def _value(checkpoint: Checkpoint, text: Mapping[str, Any], name: str) -> Any:
    return Checkpoint(checkpoint.source, text, {}).value(name)
