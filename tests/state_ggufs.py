"""GGUF files of random models whose layers keep a running state, and the models of transformers that they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ggufs import folder, needs_llamacpp
from models import VOCABULARY

POSITIONS = 1024
Named = Iterator[tuple[str, Tensor]]


@functools.cache
def state_gguf(kind: str) -> tuple[Path, Any]:
    """Return a file without a tokenizer, and its model: "mamba", states alone, or "lfm2", beside attention."""
    needs_llamacpp()
    import gguf

    torch.manual_seed(9)
    make, describe, named = KINDS[kind]
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    path = folder() / f"{kind}.gguf"
    writer: Any = gguf.GGUFWriter(str(path), kind)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(model.config.hidden_size)
    writer.add_block_count(model.config.num_hidden_layers)
    describe(writer, model.config)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    for name, values in named(model):
        writer.add_tensor(name, values.detach().float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, model


def _mamba() -> Any:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=16, eos_token_id=None)
    return MambaForCausalLM(config)


def _describe_mamba(writer: Any, config: Any) -> None:
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_inner_size(config.intermediate_size)
    writer.add_ssm_state_size(config.state_size)
    writer.add_ssm_time_step_rank(config.time_step_rank)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)


def _named_mamba(model: Any) -> Named:
    outer = {"backbone.embeddings.weight": "token_embd.weight", "backbone.norm_f.weight": "output_norm.weight"}
    names = {"in_proj": "ssm_in", "conv1d": "ssm_conv1d", "x_proj": "ssm_x", "dt_proj": "ssm_dt", "out_proj": "ssm_out"}
    for name, values in model.named_parameters():
        parts = name.split(".")
        if name in outer:
            yield outer[name], values
        elif parts[3] == "norm":
            yield f"blk.{parts[2]}.attn_norm.weight", values
        elif parts[4] == "A_log":
            yield f"blk.{parts[2]}.ssm_a", -values.exp()
        elif parts[4] == "D":
            yield f"blk.{parts[2]}.ssm_d", values
        else:
            yield f"blk.{parts[2]}.{names[parts[4]]}.{parts[5]}", values.squeeze(1) if values.ndim == 3 else values


def _lfm2() -> Any:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    config = Lfm2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, layer_types=["conv", "full_attention", "conv", "conv"], block_auto_adjust_ff_dim=False,
        max_position_embeddings=POSITIONS, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        tie_word_embeddings=False,
    )  # fmt: skip
    return Lfm2ForCausalLM(config)


def _describe_lfm2(writer: Any, config: Any) -> None:
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([2 if kind == "full_attention" else 0 for kind in config.layer_types])
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_shortconv_l_cache(config.conv_L_cache)


def _named_lfm2(model: Any) -> Named:
    names = {
        "model.embed_tokens": "token_embd", "lm_head": "output", "model.embedding_norm": "token_embd_norm",
        "operator_norm": "attn_norm",
        "ffn_norm": "ffn_norm", "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down",
        "feed_forward.w3": "ffn_up", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm",
        "self_attn.k_layernorm": "attn_k_norm", "conv.conv": "shortconv.conv", "conv.in_proj": "shortconv.in_proj",
        "conv.out_proj": "shortconv.out_proj",
    }  # fmt: skip
    for name, values in model.named_parameters():
        stem = name.removesuffix(".weight")
        if stem in names:
            yield f"{names[stem]}.weight", values
        else:
            _, _, layer, inner = stem.split(".", 3)
            yield f"blk.{layer}.{names[inner]}.weight", values.squeeze(1) if values.ndim == 3 else values


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], None], Callable[[Any], Named]]] = {
    "mamba": (_mamba, _describe_mamba, _named_mamba),
    "lfm2": (_lfm2, _describe_lfm2, _named_lfm2),
}
