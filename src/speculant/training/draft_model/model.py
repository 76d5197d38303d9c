"""Draft models for training: new ones of a small shape, or trained ones to align, and their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from speculant.core.errors import UsageError
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.models.pairs import compare_pair
from speculant.engines.hf.loading import load_config, load_model
from speculant.training.student import Student
from speculant.training.texts import Int64

SHAPE = {  # shape options -> names in transformers' configs
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "inner": "intermediate_size",
}
LOGIT_SPREAD = 0.45  # standard deviation of a new model's logits


def new_draft_model(
    target: TargetParts,
    *,
    like: str | None = None,
    layers: int = 0,
    hidden: int = 0,
    heads: int = 0,
    kv_heads: int = 0,
    head_dim: int = 0,
    inner: int = 0,
) -> Student:
    """Return a draft model with new weights and the target's vocabulary.

    Its input embeddings, most of a small model's weights, start as the principal components of the target's.

    Args:
        target: the model that it drafts for.
        like: a folder or hub id whose config is used, except for what is given here; None for a small Llama with tied
            embeddings.
        layers, hidden, heads, kv_heads, head_dim, inner: its shape; 0 for that of `like`, or for a fraction of the
            target's.

    Raises:
        UsageError: the shape is invalid.
        ModelNotFoundError: there is no config by that name.
    """
    given = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "inner": inner,
    }
    if negative := [name for name, value in given.items() if value < 0]:
        raise UsageError(f"{negative[0]} of a new draft model must be 1 or more, not {given[negative[0]]}.")
    shape = {name: value for name, value in given.items() if value}
    try:
        config = small_config(target, shape) if like is None else change_config(load_config(like), target, shape)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except (
        ValueError,
        TypeError,
        KeyError,
        RuntimeError,
    ) as error:  # configs and layers report invalid shapes with any of these
        wanted = ", ".join(f"{name}={value}" for name, value in shape.items())
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(
            f"a draft model of this shape{wanted and f' ({wanted})'} cannot be built: {why} Change --set or --like."
        ) from error
    table = model.get_input_embeddings().weight
    if table.shape[1] <= target.hidden_size:
        with torch.no_grad():
            ids = torch.arange(target.vocabulary, device=target.projection().device)
            table[: target.vocabulary] = principal_components(target.embed(ids).float().cpu(), table.shape[1])
    return Student(model)


def small_config(target: TargetParts, shape: dict[str, int]) -> LlamaConfig:
    """Return the config of a small Llama: a quarter of the target's width and an eighth of its layers."""
    hidden = shape.get("hidden") or max(16, target.hidden_size // 4 // 16 * 16)
    head_dim = shape.get("head_dim") or (64 if hidden >= 512 else 32 if hidden >= 64 else 16)
    heads = shape.get("heads") or max(1, hidden // head_dim)
    rope = dict(getattr(target.config, "rope_parameters", None) or {})
    return LlamaConfig(
        vocab_size=target.vocabulary,
        hidden_size=hidden,
        intermediate_size=shape.get("inner") or max(16, round(hidden * 8 / 3 / 16) * 16),
        num_hidden_layers=shape.get("layers") or max(2, target.layers // 8),
        num_attention_heads=heads,
        num_key_value_heads=shape.get("kv_heads") or (heads // 4 if heads % 4 == 0 else heads),
        head_dim=head_dim,
        max_position_embeddings=target.positions or 2048,
        rope_parameters={"rope_type": "default", "rope_theta": float(rope.get("rope_theta") or 10000.0)},
        tie_word_embeddings=True,
        **special_tokens(target),
    )


def change_config(config: PretrainedConfig, target: TargetParts, shape: dict[str, int]) -> PretrainedConfig:
    """Return a config with the target's vocabulary and another shape.

    Raises:
        ValueError: the config has no such entry.
    """
    known = config.to_dict()
    names = {name: config.attribute_map.get(entry, entry) for name, entry in SHAPE.items()}
    for name in shape:
        if names[name] not in known:
            raise ValueError(f"its config has no {names[name]!r}.")
    changes: dict[str, Any] = {names[name]: value for name, value in shape.items()}
    changes |= {"vocab_size": target.vocabulary} | special_tokens(target)
    if (kinds := known.get("layer_types")) and "layers" in shape:  # continues the pattern of the first layers
        changes["layer_types"] = [kinds[index % len(kinds)] for index in range(shape["layers"])]
    return type(config).from_dict(known | changes)


def special_tokens(target: TargetParts) -> dict[str, Any]:
    """Return the target's special tokens, as entries of a config."""
    return {name: getattr(target.config, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def principal_components(embeddings: Tensor, width: int) -> Tensor:
    """Project embeddings [V, D] onto their first principal directions, [V, width], scaled for small logits."""
    directions = torch.linalg.eigh(embeddings.T @ embeddings).eigenvectors[:, -width:]  # in ascending order
    narrow: Tensor = embeddings @ directions
    narrow *= LOGIT_SPREAD / width**0.5 / narrow.std()
    return narrow


def load_draft_model(source: str, _kind: str, target: TargetParts, tokenizer: Any, _counts: Int64) -> Student:
    """Return a trained draft model in float32, on the target's device.

    Args:
        source: a folder or hub id.
        _kind: only used for trained heads.
        target: the model that it drafts for.
        tokenizer: the target's, or None.
        _counts: only used for PARD models.

    Raises:
        ModelNotFoundError: there is no such model.
        UsageError: its vocabulary is not the target's.
    """
    model, own = load_model(source, dtype="float32", device=str(target.projection().device))
    vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    pair = compare_pair(tokenizer, own, vocabulary=target.vocabulary, draft_vocabulary=vocabulary)
    if pair.relation == "different":
        raise UsageError(
            f"the draft model {source} ({vocabulary} tokens) has another vocabulary than the target "
            f"({target.vocabulary} tokens), so their distributions cannot be compared. Name a draft model of the "
            "target's family, or leave --init out to train a new one."
        )
    return Student(model)


def save_draft_model(head: nn.Module, folder: Path, _target: TargetParts) -> None:
    """Write a draft model's configs and weights into a folder, as transformers does."""
    assert isinstance(head, Student)
    head.model.save_pretrained(folder)
