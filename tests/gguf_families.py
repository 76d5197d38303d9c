"""GGUF files of tiny models of each architecture, written with the package `gguf` as llama.cpp's converter does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ggufs import folder
from speculant.engines.hf.quantized.experts import expert_weights, is_experts
from speculant.engines.hf.quantized.gguf.architectures import ARCHITECTURES, MIXTRAL, Architecture

gguf: Any = pytest.importorskip("gguf")  # which writes files; `engines/hf/quantized` reads them without it

VOCABULARY = 96
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
WINDOW = 8
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # name: architecture in files, settings of transformers
    "llama": ("llama", {}),
    "llama3": ("llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 64}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}}),
    "mistral3": ("mistral3", {"head_dim": 32, "rope_parameters": YARN | {
        "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {"head_dim": 64}),
    "gemma2": ("gemma2", {"head_dim": 64, "sliding_window": WINDOW, "query_pre_attn_scalar": 64}),
    "gemma3": ("gemma3", {"head_dim": 64, "sliding_window": WINDOW, "num_hidden_layers": 7, "query_pre_attn_scalar": 64,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        }}),
    "mixtral": ("llama", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2moe": ("qwen2moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 512}),
    "qwen3moe": ("qwen3moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
        "head_dim": 64, "norm_topk_prob": True}),
    "gpt-oss": ("gpt-oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 64,
        "sliding_window": WINDOW}),
    "phi3": ("phi3", {"tie_word_embeddings": True}),
    "phi3-long": ("phi3", {"rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
        "short_factor": [1.0 + i / 10 for i in range(8)], "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": 256}, "original_max_position_embeddings": 256}),
}  # fmt: skip


@functools.cache
def family_model(name: str) -> Any:
    """Return a random float32 model of a family, whose logits are spread."""
    _, changes = FAMILIES[name]
    architecture = architecture_of(name)
    config = AutoConfig.for_model(architecture.model_type, **SHAPE | changes)
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2.5)
            else:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def architecture_of(family: str) -> Architecture:
    """Return the architecture of a family's files."""
    return MIXTRAL if family == "mixtral" else ARCHITECTURES[FAMILIES[family][0]]


@functools.cache
def family_file(name: str, kind: str = "f32") -> Path:
    """Return the model of a family as a GGUF file, in one of `quantize.FORMATS`."""
    path = folder() / f"{name}-{kind}.gguf"
    if kind == "f32":
        write_family(family_model(name), architecture_of(name), path)
    else:
        from speculant.engines.llamacpp.quantize import quantize

        quantize(family_file(name), path, kind, threads=1)
    return path


def write_family(
    model: Any,
    architecture: Architecture,
    path: Path,
    *,
    leave_out: str = "",
    extra: dict[str, Any] | None = None,
    describe: Callable[[Any], None] | None = None,
) -> None:
    """Write a model's weights and settings.

    Args:
        model: of transformers.
        architecture: of the file.
        path: of the file.
        leave_out: a tensor that is to be missing.
        extra: more tensors, by name.
        describe: writes a tokenizer, or more settings; None for a file without a tokenizer.
    """
    writer: Any = gguf.GGUFWriter(str(path), architecture.name)
    _describe(writer, model.config, architecture.name)
    if describe is None:
        writer.add_vocab_size(model.config.vocab_size)
        writer.add_tokenizer_model("none")
    else:
        describe(writer)
    for name, values in (_tensors(model, architecture) | (extra or {})).items():
        if name != leave_out:
            writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, config: Any, name: str) -> None:
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = dict(config.rope_parameters)
    if name == "gemma3":
        rope = rope["full_attention"]
        writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 1)))
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "mscale_all_dim" in rope:
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if kind == "longrope":
        ratio = config.max_position_embeddings / rope["original_max_position_embeddings"]
        factor = (1 + np.log(ratio) / np.log(rope["original_max_position_embeddings"])) ** 0.5
        writer.add_rope_scaling_attn_factors(float(factor))
    if experts := getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        if name == "qwen2moe":
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
        if name != "llama":
            writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))
    if name in ("gemma2", "gemma3", "gpt-oss"):
        writer.add_sliding_window(config.sliding_window)
    if name == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _tensors(model: Any, architecture: Architecture) -> dict[str, np.ndarray]:
    config = model.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    found = {}
    for path, module in model.named_modules():
        if is_experts(module):
            found |= _expert_tensors(path.split(".")[2], module)
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            continue
        tensor, values = architecture.tensor(name), parameter.detach()
        count = heads.get(tensor.split(".")[-2])
        if architecture.paired and count is not None:
            values = values.reshape(count, 2, -1, *values.shape[1:]).transpose(1, 2).reshape(values.shape)
        if architecture.shifted_norms and "norm" in tensor:
            values = values + 1
        found[tensor] = (values[0] if "shexp" in tensor and len(values) == 1 else values).numpy()
    rope = config.rope_parameters
    if rope.get("rope_type") == "llama3":
        inverse = model.model.rotary_emb.inv_freq
        plain = 10000.0 ** -(torch.arange(len(inverse)) / len(inverse))
        found["rope_freqs.weight"] = (plain / inverse).numpy()
    for name in ("short", "long"):
        if f"{name}_factor" in rope:
            found[f"rope_factors_{name}.weight"] = np.array(rope[f"{name}_factor"], np.float32)
    return found


def _expert_tensors(layer: str, module: Any) -> dict[str, np.ndarray]:
    count = len(module.down_proj)
    found = {
        f"blk.{layer}.ffn_{name.removesuffix('_proj')}_exps.weight": rows.detach().unflatten(0, (count, -1)).numpy()
        for name, rows in expert_weights(module).items()
    }
    if "gate_up_proj_bias" in module._parameters:
        both = module.gate_up_proj_bias.detach()
        for name, values in (("gate", both[:, ::2]), ("up", both[:, 1::2]), ("down", module.down_proj_bias.detach())):
            found[f"blk.{layer}.ffn_{name}_exps.bias"] = values.numpy()
    return found
