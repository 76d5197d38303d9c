"""Tiny random models of every causal architecture that transformers has, multimodal ones included."""

from __future__ import annotations

from typing import Any

import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as IMAGE_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES as MEDIA_NAMES

from speculant.engines.hf.probe.class_checks import ENCODERS
from speculant.engines.hf.probe.tiny import POSITIONS, quiet, tiny_config, tiny_model

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def _axes(*sections: int) -> dict[str, Any]:
    """Return a text's rotary parameters, with the share of each axis."""
    return {"text_config": {"rope_parameters": _ROPE | {"mrope_section": [*sections], "partial_rotary_factor": 1.0}}}


IMAGE = 45  # the first id that stands for media, see `source_inputs`
_CODES = {"embed_dim": 8, "latent_channels": 8, "base_channels": 32, "channel_multiplier": (1, 1), "num_res_blocks": 1}
_CHAMELEON = {
    "vq_config": _CODES | {"num_embeddings": 8, "resolution": 16},
    "vocabulary_map": {"<image>": IMAGE} | {f"IMGIMG{'ABCDEFGH'[code]}Z": 50 + code for code in range(8)},
}
_EMU3 = {
    "vq_config": _CODES | {"codebook_size": 8, "hidden_size": 32, "temporal_downsample_factor": 1},
    "vocabulary_map": {"<image>": IMAGE, "<|extra_200|>": 49}
    | {f"<|visual token {code:06d}|>": 50 + code for code in range(8)},
}
_OMNI = {"vision_start_token_id": 58, "audio_start_token_id": 59}
_COMPASS = {"rope_parameters": {"full_attention": _ROPE}}
_INDEXER = {"indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8}
_INDEXER |= {"indexer_compress_ratio": 4, "head_dim": 8}
_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}


def _longrope(pairs: int, **more: Any) -> dict[str, Any]:
    """Return rotary parameters for heads of so many rotated pairs."""
    factors = {"short_factor": [1.0 + pair / pairs for pair in range(pairs)], "long_factor": [2.0] * pairs}
    return {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 1024, **factors, **more}


CHANGES: dict[str, dict[str, Any]] = {  # what a default config lacks to be built, or has and real models have not
    **{name: {"is_decoder": True} for name in ENCODERS},
    "bamba": {"attn_layer_indices": [1]},
    "chameleon": _CHAMELEON,
    "cohere_compass": {"text_config": _COMPASS},
    "cohere_compass_text": _COMPASS,
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    **dict.fromkeys(("emu3", "emu3 (media)"), _EMU3),
    "ernie4_5_vl_moe": _axes(12, 12, 8),
    "granite4_vision": {"downsample_rate": "1/2", "deepstack_layer_map": [[0, 0]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 16},
    **dict.fromkeys(("glm4v", "glm46v", "glmga", "glm4v_moe", "glm_ocr"), _axes(8, 12, 12)),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "paddleocr_vl"), _axes(8, 12, 12)),
    "qwen2_5_omni_thinker": _axes(8, 12, 12) | _OMNI,
    "qwen3_omni_moe_thinker": _OMNI,
    "hunyuan_vl": {"text_config": {"head_dim": 8, "rope_parameters": _ROPE | {"mrope_section": [2, 1, 1]}}},
    "step3p7": {"text_config": {"sliding_window": 512}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "qwen4_exp_text": _INDEXER,
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp (media)": {"text_config": _INDEXER},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "hrm_text": {"H_cycles": 1, "L_cycles": 1, "num_layers_per_stack": 1, "num_hidden_layers": 2},
    "janus": {"vq_config": _CODES | {"num_embeddings": 8, "image_token_embed_dim": 32}},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 2},
    "kosmos-2.5": {"text_config": {"embed_dim": 32, "layers": 2, "ffn_dim": 48, "attention_heads": 4}},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "ministral": {"head_dim": 8},
    "mistral4": {  # what rotates is measured by the size of a head, which is made that part's size here
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "partial_rotary_factor": 1.0}
        | {"original_max_position_embeddings": 8192, "llama_4_scaling_beta": 0.1}
        | {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    },
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
    "phi4_multimodal (rope: longrope)": (
        "phi4_multimodal",
        {"original_max_position_embeddings": 1024, "rope_parameters": _longrope(48)},
    ),
    "qwen2 (sliding window)": ("qwen2", {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 1}),
    "qwen4_exp_text (n-gram embeddings)": ("qwen4_exp_text", {**_INDEXER, "ple_layer_ids": [1], "eos_token_id": 2}),
}


def names() -> list[str]:
    """Return the model types that transformers has classes of which write text behind text, and variants of some."""
    return sorted([*_CLASSES, *(name for name, (kind, _) in VARIANTS.items() if kind in _CLASSES)])


def _classes() -> dict[str, Any]:
    """Return the mapping of each model type: that of causal models, or of multimodal ones where their class differs."""
    found: dict[str, Any] = dict.fromkeys(CAUSAL_NAMES, MODEL_FOR_CAUSAL_LM_MAPPING)
    for own, mapping in (
        (IMAGE_NAMES, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING),
        (MEDIA_NAMES, MODEL_FOR_MULTIMODAL_LM_MAPPING),
    ):
        for name, kind in own.items():
            if name not in found:
                found[name] = mapping
            elif CAUSAL_NAMES.get(name, kind) != kind:
                found[name + MEDIA] = mapping
    return found


MEDIA = " (media)"
_CLASSES = _classes()


def class_name(name: str) -> str:
    """Return the class of an architecture."""
    kind = VARIANTS.get(name, (name,))[0]
    for own in (IMAGE_NAMES, MEDIA_NAMES) if kind.endswith(MEDIA) else (CAUSAL_NAMES, IMAGE_NAMES, MEDIA_NAMES):
        if (found := own.get(kind.removesuffix(MEDIA))) is not None:
            return str(found)
    raise KeyError(name)


def build(name: str, attention: str, *, positions: int | None = None) -> Any:
    """Return a tiny random fp32 model, with as many positions if that is given.

    Raises:
        Exception: whatever the class raises if it cannot be built with these sizes or this attention.
    """
    kind, changes = VARIANTS.get(name, (name, CHANGES.get(name, {})))
    mapping, kind = _CLASSES[kind], kind.removesuffix(MEDIA)
    with quiet():
        config_class = CONFIG_MAPPING[kind]
        model_class, config = mapping[config_class], config_class(**changes)
        if model_class.config_class is config.sub_configs.get("text_config"):
            config = config.get_text_config()
        config = tiny_config(config)
        for part in (config, config.get_text_config(), config.get_text_config(decoder=True)) if positions else ():
            for limit in (each for each in POSITIONS if isinstance(getattr(part, each, None), int)):
                setattr(part, limit, positions)
        model = tiny_model(model_class, config, attention=attention)
        if hasattr(model, "set_default_language"):
            model.set_default_language("en_XX")
    assert model.dtype == torch.float32
    return model
