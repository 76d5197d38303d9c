"""Tiny random models of several architectures, made in memory."""

from __future__ import annotations

import copy
from importlib.metadata import version
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from speculant.engines.hf.views.model_view import find_layers

TRANSFORMERS = Version(version("transformers"))
# Defects of releases: `generate` reads Phi-3's texts wrongly beyond a limit; rotary factors outlive the text they fit.
PHI3 = pytest.mark.skipif(Version("5.4") > TRANSFORMERS, reason="transformers before 5.4 decodes Phi-3 wrongly")
DYNAMIC = pytest.mark.skipif(Version("5.13") > TRANSFORMERS, reason="transformers before 5.13 keeps dynamic factors")

VOCABULARY = 61
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def tiny_model(name: str, attention: str = "sdpa", **changes: Any) -> Any:
    """Return a random fp32 model whose logits are spread enough that greedy text repeats little."""
    shape = SHAPE | changes
    heads = {key: shape[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    builders: dict[str, Any] = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**shape)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**shape)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=8)),
        "gemma3": lambda: Gemma3ForCausalLM(
            Gemma3TextConfig(
                **shape,
                head_dim=8,
                sliding_window=12,
                layer_types=(["sliding_attention", "full_attention"] * 2)[: shape["num_hidden_layers"]],
            )
        ),
        "mistral": lambda: MistralForCausalLM(MistralConfig(**shape, sliding_window=12)),
        "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**shape, num_local_experts=4, num_experts_per_tok=2)),
        "phi3": lambda: Phi3ForCausalLM(Phi3Config(**shape)),
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(
                **heads,
                n_embd=32,
                n_layer=shape["num_hidden_layers"],
                n_head=4,
                n_positions=shape["max_position_embeddings"],
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
            )
        ),
        "gpt_neox": lambda: GPTNeoXForCausalLM(
            GPTNeoXConfig(**{k: v for k, v in shape.items() if k != "num_key_value_heads"})
        ),
        "bloom": lambda: BloomForCausalLM(
            BloomConfig(**heads, hidden_size=32, n_layer=shape["num_hidden_layers"], n_head=4)
        ),
    }
    torch.manual_seed(7)
    model = builders[name]().eval()
    model.set_attn_implementation(attention)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


def deep_model(name: str, attention: str = "sdpa", **changes: Any) -> Any:
    """Return a tiny model of three layers, so that one lies between the first and the last."""
    return tiny_model(name, attention, **{"num_hidden_layers": 3} | changes)


def hybrid_model(**changes: Any) -> Any:
    """Return a random model as Qwen3.5's: Gated DeltaNet and full attention in turns, whose texts do not end."""
    if "qwen3_5_text" not in CONFIG_MAPPING:
        pytest.skip("this release of transformers has no Qwen3.5")
    layers = {"layer_types": ["linear_attention", "full_attention"], "head_dim": 8}
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    sizes = {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    config = AutoConfig.for_model("qwen3_5_text", **SHAPE | layers | heads | sizes | changes)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.generation_config.eos_token_id = None
    return model


def endless(name: str, **changes: Any) -> Any:
    """Return a tiny model whose texts do not end."""
    model = tiny_model(name, **changes)
    model.generation_config.eos_token_id = None
    return model


def perturbed(model: Any, share: float) -> Any:
    """Return the model with noise in its weights, a share of each one's spread: a draft model for the original."""
    source = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in model.parameters():
            weight += share * weight.std() * torch.randn(weight.shape, generator=source)
    return model


def truncated(model: Any, layers: list[int]) -> Any:
    """Return a copy of a model without the other layers."""
    model = copy.deepcopy(model)
    place = find_layers(model)
    assert place is not None
    kept = nn.ModuleList(place.layers[index] for index in layers)
    for index, layer in enumerate(kept):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = index
    parent = model.get_submodule(".".join(place.path[:-1]))
    setattr(parent, place.path[-1], kept)
    types = getattr(model.config, "layer_types", None)
    model.config.num_hidden_layers = len(layers)
    if types:
        model.config.layer_types = [types[index] for index in layers]
    return model
