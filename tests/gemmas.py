"""Tiny Gemma 4 targets, and assistants for them in the published layout."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from models import SHAPE
from speculant.drafters.heads.assistant.head import AssistantHead
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.checkpoints.formats import load_head
from speculant.drafters.heads.drafter import LoadedHead
from speculant.engines.hf.views.target_parts import HFTargetParts

FULL, SLIDING = "full_attention", "sliding_attention"
WINDOW = 6
DRAFT = 24  # the assistant's hidden size
KEYS: dict[str, Any] = {"head_dim": 8, "global_head_dim": 16, "sliding_window": WINDOW}
OWN_KEYS: dict[str, Any] = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
TARGETS: dict[str, dict[str, Any]] = {  # as E2B, as 31B, as 12B
    "shared": {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8},
    "own": {**OWN_KEYS, "final_logit_softcapping": 30.0},
    "unified": {**OWN_KEYS, "model_type": "gemma4_unified_text"},
}


def gemma(name: str = "shared", **changes: Any) -> Any:
    """Return a random target whose texts do not end: with layers that share keys, without, or the 12B's form."""
    given = {"model_type": "gemma4_text", "num_hidden_layers": 4, "layer_types": [SLIDING, FULL] * 2}
    given |= TARGETS[name] | changes
    if given["model_type"] not in CONFIG_MAPPING:
        pytest.skip(f"this release of transformers has no {given['model_type']}")
    if given["model_type"] == "gemma4_text":
        inputs = given.setdefault("hidden_size_per_layer_input", 0)
        given["vocab_size_per_layer_input"] = given.get("vocab_size", SHAPE["vocab_size"]) if inputs else 0
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**SHAPE | KEYS | given)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    model.generation_config.eos_token_id = None
    return model


def assistant_config(model: Any, *, clusters: int = 0, best: int = 2, **changes: Any) -> dict[str, Any]:
    """Return the config of an assistant for a target, as it is published; `changes` are of its layers."""
    own = model.config.get_text_config().to_dict()
    unified = "unified" in own["model_type"]
    text = {
        "model_type": own["model_type"],
        "vocab_size": own["vocab_size"],
        "hidden_size": DRAFT,
        "intermediate_size": 40,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": own["num_key_value_heads"],
        "num_kv_shared_layers": 4,
        "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 256,
        "rope_parameters": copy.deepcopy(own["rope_parameters"]),
        "tie_word_embeddings": True,
        **KEYS,
    }
    if not unified:
        text |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "enable_moe_block": False}
    if own["attention_k_eq_v"]:
        text |= OWN_KEYS
    return {
        "architectures": [f"Gemma4{'Unified' * unified}AssistantForCausalLM"],
        "model_type": f"gemma4{'_unified' * unified}_assistant",
        "backbone_hidden_size": own["hidden_size"],
        "use_ordered_embeddings": clusters > 0,
        "num_centroids": clusters or 2048,
        "centroid_intermediate_top_k": best,
        "tie_word_embeddings": True,
        "text_config": text | changes,
    }


def assistant_tensors(config: dict[str, Any], *, seed: int = 3) -> dict[str, torch.Tensor]:
    """Return random weights by their published names."""
    text, width = config["text_config"], config["backbone_hidden_size"]
    size, inner, heads = text["hidden_size"], text["intermediate_size"], text["num_attention_heads"]
    shapes = {
        "model.embed_tokens.weight": (text["vocab_size"], size),
        "model.norm.weight": (size,),
        "pre_projection.weight": (size, 2 * width),
        "post_projection.weight": (width, size),
    }
    for index, kind in enumerate(text["layer_types"]):
        wide = text["global_head_dim"] if kind == FULL else text["head_dim"]
        parts = {
            "self_attn.q_proj.weight": (heads * wide, size),
            "self_attn.q_norm.weight": (wide,),
            "self_attn.o_proj.weight": (size, heads * wide),
            "mlp.gate_proj.weight": (inner, size),
            "mlp.up_proj.weight": (inner, size),
            "mlp.down_proj.weight": (size, inner),
            "layer_scalar": (1,),
        }
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            parts[f"{norm}_layernorm.weight"] = (size,)
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in parts.items()}
    source = torch.Generator().manual_seed(seed)
    found = {
        name: torch.randn(shape, generator=source) * (0.3 if len(shape) > 1 else 0.2) + (len(shape) == 1)
        for name, shape in shapes.items()
    }
    if config["use_ordered_embeddings"]:
        found["masked_embedding.centroids.weight"] = torch.randn(config["num_centroids"], size, generator=source)
        found["masked_embedding.token_ordering"] = torch.randperm(text["vocab_size"], generator=source)
    return found


def save_assistant(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Write a checkpoint as it is published."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_file(tensors, folder / "model.safetensors")


def loaded_assistant(model: Any, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> LoadedHead:
    """Return the assistant of a checkpoint, on its target."""
    loaded = load_head(Checkpoint("memory", config, tensors), HFTargetParts(model))
    assert isinstance(loaded.head, AssistantHead)
    loaded.head.to(model.dtype).eval().requires_grad_(False)
    return loaded


def assistant(model: Any, **options: Any) -> LoadedHead:
    """Return a random assistant of a target; the options are those of its config."""
    config = assistant_config(model, **options)
    return loaded_assistant(model, config, assistant_tensors(config))
