"""Tiny random models of every causal architecture that transformers has."""

from __future__ import annotations

from typing import Any

import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from speculant.engines.hf.capabilities import ENCODERS
from speculant.engines.hf.tiny import quiet, tiny_config, tiny_model

_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}


def _longrope(pairs: int, **more: Any) -> dict[str, Any]:
    """Return rotary parameters for heads of so many rotated pairs."""
    factors = {"short_factor": [1.0 + pair / pairs for pair in range(pairs)], "long_factor": [2.0] * pairs}
    return {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 1024, **factors, **more}


CHANGES: dict[str, dict[str, Any]] = {  # what a default config lacks to be built, or has and real models have not
    **{name: {"is_decoder": True} for name in ENCODERS},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "ministral": {"head_dim": 8},
    "nemotron": {**_HEADS, "head_dim": None},
    "reformer": {"is_decoder": True},
    "xlm": {"causal": True},
    "xmod": {"is_decoder": True, "default_language": "en_XX"},
}
_FULL = {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # architectures whose masks or positions go by an option
    "falcon (ALiBi)": ("falcon", {"alibi": True}),
    "gpt_neo (global layers)": ("gpt_neo", {"attention_types": [[["global"], 2]], "num_layers": 2}),
    "llama (a window left in its config)": ("llama", {"sliding_window": 512}),
    "llama (rope: dynamic)": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
    ),
    "llama (rope: longrope)": ("llama", {"rope_parameters": _longrope(64, factor=4.0)}),
    "llama4_text (full attention)": ("llama4_text", {**_FULL, "attn_temperature_tuning": False}),
    "llama4_text (full attention, temperature tuning)": ("llama4_text", {**_FULL, "attn_temperature_tuning": True}),
    "phi3 (rope: longrope)": ("phi3", {"original_max_position_embeddings": 1024, "rope_parameters": _longrope(48)}),
    "phi3 (sliding window)": ("phi3", {"sliding_window": 2048}),
    "qwen2 (sliding window)": ("qwen2", {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 1}),
}


def names() -> list[str]:
    """Return the model types that AutoModelForCausalLM knows, and variants of some."""
    return sorted([*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *VARIANTS])


def class_name(name: str) -> str:
    """Return the class of an architecture."""
    return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[VARIANTS.get(name, (name,))[0]])


def build(name: str, attention: str) -> Any:
    """Return a tiny random fp32 model.

    Raises:
        Exception: whatever the class raises if it cannot be built with these sizes or this attention.
    """
    kind, changes = VARIANTS.get(name, (name, CHANGES.get(name, {})))
    with quiet():
        config_class = CONFIG_MAPPING[kind]
        model_class, config = MODEL_FOR_CAUSAL_LM_MAPPING[config_class], config_class(**changes)
        if model_class.config_class is config.sub_configs.get("text_config"):
            config = config.get_text_config()
        model = tiny_model(model_class, tiny_config(config), attention=attention)
        if hasattr(model, "set_default_language"):
            model.set_default_language("en_XX")
    assert model.dtype == torch.float32
    return model
