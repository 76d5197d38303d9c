"""Builds a transformers config from the metadata of a GGUF file.

`settings` reads what all architectures share. What is specific to one, and what its files omit, is in `_SPECIAL`, as in
llama.cpp's code (`src/models` of github.com/ggml-org/llama.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from speculant.core.errors import ModelError, UnsupportedError
from speculant.engines.hf.quantized.gguf.architectures import ARCHITECTURES, HEAD, LONG, MIXTRAL, SHORT, Architecture
from speculant.engines.hf.quantized.gguf.file import GgufFile
from speculant.engines.hf.quantized.gguf.settings import FULL, SLIDING, Settings


def find_architecture(file: GgufFile) -> Architecture:
    """Return the architecture of a file.

    Raises:
        ModelError: the file does not name one.
        UnsupportedError: it is not in `ARCHITECTURES`.
    """
    name = file.read("general.architecture", str)
    if name not in ARCHITECTURES:
        raise UnsupportedError(
            f"models of the architecture '{name}' do not run on Speculant's own passes, which support "
            f"{', '.join(ARCHITECTURES)}. Use llama.cpp (--engine llamacpp)."
        )
    return MIXTRAL if name == "llama" and file.metadata.get("llama.expert_count") else ARCHITECTURES[name]


def read_config(file: GgufFile) -> Any:
    """Return the config of a file's model, of transformers' class for it.

    Raises:
        ModelError: a setting is missing or invalid.
        UnsupportedError: the architecture, or one of its settings, is not supported.
    """
    from transformers import CONFIG_MAPPING

    architecture = find_architecture(file)
    if architecture.model_type not in CONFIG_MAPPING:
        raise UnsupportedError(
            f"this release of transformers has no {architecture.model_type} models; install a newer one, or use "
            "llama.cpp (--engine llamacpp)."
        )
    found = Settings(file, architecture)
    found.check()
    values = found.sizes() | {"rope_parameters": found.rope()}
    if architecture.model_type in _SPECIAL:
        values |= _SPECIAL[architecture.model_type](found, values)
    values |= {
        "tie_word_embeddings": HEAD not in file.tensors,
        **{key: found.token(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }
    try:
        return CONFIG_MAPPING[architecture.model_type](**values)
    except Exception as error:  # transformers' validators raise arbitrary exceptions
        raise ModelError(f"{file.path} cannot be used: its settings are not possible: {error}.") from error


def _llama(found: Settings, _: Mapping[str, Any]) -> dict[str, Any]:
    tensors = found.file.tensors
    return {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_up.bias" in tensors}


def _gemma2(found: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_attention_scale(values, largest=46),
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": found.integer("attention.sliding_window", 4096),
        "layer_types": found.layer_types(2, values["num_hidden_layers"]),
        "attn_logit_softcapping": found.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": found.number("final_logit_softcapping", 30.0),
    }


def _gemma3(found: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    local = {"rope_type": "default", "rope_theta": found.number("rope.freq_base_swa", 10000.0)}
    windows = found.integer("attention.sliding_window") if found.has("attention.sliding_window") else None
    capped = found.has("final_logit_softcapping")
    return {
        **_attention_scale(values, largest=62),
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": windows or values["max_position_embeddings"],
        "layer_types": found.layer_types(6 if windows else 1, values["num_hidden_layers"]),
        "rope_parameters": {FULL: values["rope_parameters"], SLIDING: local},
        "final_logit_softcapping": found.number("final_logit_softcapping") if capped else None,
    }


def _attention_scale(values: Mapping[str, Any], *, largest: int) -> dict[str, Any]:
    """Return the number whose root divides scores: the head size, but not in Gemma's largest models."""
    of_a_head = values["hidden_size"] // values["num_attention_heads"]
    return {"query_pre_attn_scalar": of_a_head if values["num_hidden_layers"] == largest else values["head_dim"]}


def _phi3(found: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    size, window = values["head_dim"], found.file.metadata.get("phi3.attention.sliding_window", 0)
    if size != values["hidden_size"] // values["num_attention_heads"]:
        raise UnsupportedError(
            f"a head of {found.file.path} has {size} dimensions, which Phi-3 models of transformers cannot have. Use "
            "llama.cpp (--engine llamacpp)."
        )
    original = found.integer("rope.scaling.original_context_length", values["max_position_embeddings"])
    rope = dict(values["rope_parameters"])
    rope["partial_rotary_factor"] = found.integer("rope.dimension_count", size) / size
    factors = {"short_factor": found.file.tensors.get(SHORT), "long_factor": found.file.tensors.get(LONG)}
    if None not in factors.values():
        rope |= {name: each.floats().tolist() for name, each in factors.items() if each is not None}
        rope |= {"rope_type": "longrope", "original_max_position_embeddings": original}
        rope["factor"] = values["max_position_embeddings"] / original
        if found.has("rope.scaling.attn_factor"):
            rope["attention_factor"] = found.number("rope.scaling.attn_factor")
    return {
        "rope_parameters": rope,
        "original_max_position_embeddings": original,
        # llama.cpp reads this and runs full attention; the model was trained with the window.
        "sliding_window": window if isinstance(window, int) and window > 0 else None,
    }


def _mistral3(found: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    rope = dict(values["rope_parameters"])
    rope["llama_4_scaling_beta"] = found.number("attention.temperature_scale", 0.0)
    rope.setdefault("original_max_position_embeddings", values["max_position_embeddings"])
    return {"rope_parameters": rope}


def _mixtral(found: Settings, _: Mapping[str, Any]) -> dict[str, Any]:
    return {"num_local_experts": found.integer("expert_count"), "num_experts_per_tok": _count_used_experts(found)}


def _qwen2moe(found: Settings, _: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_experts(found),
        "shared_expert_intermediate_size": found.outs("blk.0.ffn_up_shexp.weight"),
        "norm_topk_prob": False,
    }


def _qwen3moe(found: Settings, _: Mapping[str, Any]) -> dict[str, Any]:
    return {**_experts(found), "norm_topk_prob": True}


def _gpt_oss(found: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    rope = dict(values["rope_parameters"])
    if rope["rope_type"] == "yarn":
        rope["truncate"] = False  # as the model was trained; no metadata key states it
    return {
        "num_local_experts": found.integer("expert_count"),
        "num_experts_per_tok": _count_used_experts(found),
        "intermediate_size": found.outs("blk.0.ffn_up_exps.weight"),
        "sliding_window": found.integer("attention.sliding_window"),
        "layer_types": found.layer_types(2, values["num_hidden_layers"]),
        "rope_parameters": rope,
    }


def _experts(found: Settings) -> dict[str, Any]:
    return {
        "num_experts": found.integer("expert_count"),
        "num_experts_per_tok": _count_used_experts(found),
        "moe_intermediate_size": found.outs("blk.0.ffn_up_exps.weight"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _count_used_experts(found: Settings) -> int:
    """Return the number of experts per row.

    Raises:
        ModelError: there are fewer experts.
    """
    used = found.integer("expert_used_count")
    if used > found.integer("expert_count"):
        raise found.wrong("expert_used_count", used)
    return used


_SPECIAL: Mapping[str, Callable[[Settings, Mapping[str, Any]], dict[str, Any]]] = MappingProxyType(
    {
        "llama": _llama,
        "ministral3": _mistral3,
        "mixtral": _mixtral,
        "qwen2_moe": _qwen2moe,
        "qwen3_moe": _qwen3moe,
        "gpt_oss": _gpt_oss,
        "gemma2": _gemma2,
        "gemma3_text": _gemma3,
        "phi3": _phi3,
    }
)
