"""Writes a Llama-like transformers model to a GGUF file, so that llama.cpp runs exactly the same weights.

Without a tokenizer, only what computes logits from token ids is written: the tokenizer's model is "none" and the
vocabulary just a size. A tokenizer must be of the kind that `gguf_tokenizer` writes. Matrices keep their dtype; vectors
are written in float32, in which llama.cpp computes. For the architecture `llama`, llama.cpp applies rotary embeddings
to neighbouring pairs of a head's dimensions where transformers pairs the two halves, so rows of q and k are permuted;
the qwen architectures pair halves, as transformers does. Names and keys are those of llama.cpp's own converter
(convert_hf_to_gguf.py).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from speculant.core.errors import FileError, UnsupportedError
from speculant.engines.hf.quantized.modules import quantized_modules
from speculant.engines.llamacpp.gguf_tokenizer import describe_tokenizer

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
PERMUTED = "llama"
STATIC_ROPES = ("default", "linear", "llama3")  # with frequencies that do not depend on the text length

_FILE_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 32}  # llama.cpp's LLAMA_FTYPE_*
_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


@dataclass(frozen=True, slots=True, eq=False)
class _TensorEntry:
    """A tensor of the file; `make` returns its values, so that only one tensor is copied at a time.

    Attributes:
        name: name in the file.
        kind: GGUF type.
        size: size in bytes.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    size: int
    make: Callable[[], Tensor]


def write_gguf(model: Any, path: Path, *, tokenizer: Any = None) -> None:
    """Write a model's weights as a GGUF file; an unfinished file is removed.

    Args:
        model: a transformers causal LM.
        path: path of the file, which is overwritten. It takes as many bytes as the weights.
        tokenizer: tokenizer to write; None for a file without one.

    Raises:
        UnsupportedError: the model's architecture is not supported, or the package `gguf` is not installed.
        FileError: the file cannot be written, or the disk is full.
    """
    try:
        import gguf
    except ImportError as error:
        raise UnsupportedError("writing GGUF files needs a package: pip install 'speculant[llamacpp]'.") from error
    check_architecture(model)
    entries = _entries(model)
    size = sum(entry.size for entry in entries)
    writer: Any = gguf.GGUFWriter(None, ARCHITECTURES[model.config.model_type])
    _describe(writer, model)
    if tokenizer is None:
        writer.add_vocab_size(model.get_input_embeddings().weight.shape[0])
        writer.add_tokenizer_model("none")
    else:
        describe_tokenizer(writer, tokenizer, model)
    for entry in entries:
        # Types that numpy lacks are written as bytes, so the last dimension counts bytes.
        shape = (*entry.shape[:-1], entry.shape[-1] * (4 if entry.kind == "F32" else 2))
        writer.add_tensor_info(
            entry.name, shape, torch.empty(0, dtype=torch.uint8).numpy().dtype, entry.size,
            gguf.GGMLQuantizationType[entry.kind],
        )  # fmt: skip
    try:
        free = shutil.disk_usage(path.parent).free
        if free < size:
            raise FileError(
                f"the model as a GGUF file takes {size >> 20} MB, but {path.parent} has room for {free >> 20} MB. "
                "Make room there. Set TMPDIR to another folder where the file is temporary."
            )
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for entry in entries:
            writer.write_tensor_data(entry.make().contiguous().view(torch.uint8).numpy())
        writer.close()
    except BaseException as error:
        writer.close()
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):  # numpy's errors have no strerror
            raise FileError(
                f"cannot write {path}: {error}. Make room there. Set TMPDIR to another folder where it is temporary."
            ) from error
        raise


def check_architecture(model: Any) -> None:
    """Check that a model can be written.

    Raises:
        UnsupportedError: it cannot; the message is the reason.
    """
    config, kind = model.config, model.config.model_type
    why = None
    if any(True for _ in quantized_modules(model)):
        why = "its weights are quantised already"
    elif kind not in ARCHITECTURES:
        why = f"a {kind} model; only {', '.join(ARCHITECTURES)} are written"
    elif getattr(config, "sliding_window", None) is not None:
        why = "its attention has a sliding window"
    elif config.hidden_act != "silu":
        why = f"its activation is {config.hidden_act}, not silu"
    elif (rope := model.model.rotary_emb).rope_type not in STATIC_ROPES or rope.attention_scaling != 1:
        why = f"its rotary embedding is of the type '{rope.rope_type}'; only {', '.join(STATIC_ROPES)} are written"
    elif 2 * len(rope.inv_freq) != _head_size(config):
        why = "only a part of each head is rotated"
    elif ARCHITECTURES[kind] != PERMUTED and not bool((_rope_factors(model) == 1).all()):
        why = f"llama.cpp has no scaled rotary embedding for {kind} models"
    if why is not None:
        raise UnsupportedError(f"the model cannot be written for llama.cpp: {why}. Use it in transformers' format.")


def _entries(model: Any) -> list[_TensorEntry]:
    """Return the tensors in model order, without a tied output head, as in other GGUF files.

    Raises:
        UnsupportedError: one is unknown, quantised, or not in memory.
    """
    found = []
    for name, parameter in model.named_parameters():
        gguf_name, dtype = _name(name), parameter.dtype
        if gguf_name is None or dtype not in _TYPES or parameter.device.type == "meta":
            raise UnsupportedError(
                f"the model cannot be written for llama.cpp: '{name}' ({dtype}, on {parameter.device}) is not a plain "
                "weight of its architecture. Load it without adapters, quantisation or offloading, or "
                "use it in transformers' format."
            )
        kind = _TYPES[dtype] if parameter.ndim > 1 else "F32"
        size = parameter.numel() * (4 if kind == "F32" else 2)
        found.append(_TensorEntry(gguf_name, kind, tuple(parameter.shape), size, _maker(model, name, parameter, kind)))
    factors = _rope_factors(model)
    if not bool((factors == 1).all()):
        found.append(_TensorEntry("rope_freqs.weight", "F32", tuple(factors.shape), 4 * len(factors), lambda: factors))
    return found


def _maker(model: Any, name: str, parameter: Tensor, kind: str) -> Callable[[], Tensor]:
    config = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    permuted_heads = heads.get(name.split(".")[-2]) if ARCHITECTURES[config.model_type] == PERMUTED else None

    def make() -> Tensor:
        values = parameter.detach().cpu()
        if permuted_heads is not None:
            values = interleave(values, permuted_heads)
        return values.float() if kind == "F32" else values

    return make


def interleave(rows: Tensor, heads: int) -> Tensor:
    """Permute rows [H * D, ...] of q or k so that the rows of a rotary pair are neighbours."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _name(name: str) -> str | None:
    """Return llama.cpp's name of a parameter; None if the architecture has no such parameter."""
    if name in _OUTER:
        return _OUTER[name]
    found = _LAYER.fullmatch(name)
    if found is None or found[2] not in _INNER:
        return None
    return f"blk.{found[1]}.{_INNER[found[2]]}.{found[3]}"


def _rope_factors(model: Any) -> Tensor:
    """Return the divisors [D / 2] of the rotary frequencies relative to an unscaled embedding."""
    frequencies = model.model.rotary_emb.inv_freq.detach().double().cpu()
    steps = torch.arange(len(frequencies), dtype=torch.float64) / len(frequencies)
    factors = 1 / (frequencies * float(model.config.rope_parameters["rope_theta"]) ** steps)
    # In an unscaled embedding the divisors differ from 1 only by float32 rounding.
    return torch.where((factors - 1).abs() < 1e-5, torch.ones_like(factors), factors).float()


def _head_size(config: Any) -> int:
    given = getattr(config, "head_dim", None)
    return int(given or config.hidden_size // config.num_attention_heads)


def _describe(writer: Any, model: Any) -> None:
    config = model.config
    writer.add_name(config.model_type)
    writer.add_file_type(_FILE_TYPES[model.get_input_embeddings().weight.dtype])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(_head_size(config))
    writer.add_value_length(_head_size(config))
    writer.add_rope_dimension_count(_head_size(config))
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
