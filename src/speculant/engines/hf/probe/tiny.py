"""Tiny random models of the architecture that a config describes.

They have the same layer types, masks and kinds of positions. Every size is small, and every window, chunk and rope
limit is scaled down to a few tokens, so that passes beyond them take milliseconds.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers.utils import logging

VOCABULARY = 61
WINDOWS = (  # scaled down to a few tokens, preserving their order
    *("sliding_window", "sliding_window_size", "attention_window_size", "window_size"),
    *("local_attention", "local_attention_window_len", "keep_window_size"),
)
MIN_WINDOW, APART = 6, 3
LIMITS = {  # where attention, positions or rotary factors change; scaled down, so that short texts cross them
    "attention_chunk_size": 8,
    "floor_scale": 8,
    "log_scaling_n_floor": 8,
    "original_max_position_embeddings": 14,
    "index_topk": 6,
    "index_topk_blocks": 2,
    "index_kpool": 2,  # a pool larger than the selection would leave rows that see nothing
    "index_block_size": 4,
    "rel_extent": 8,
    "chunk_size": 8,
    "mlstm_round_up_to_multiple_of": 8,
    "ffn_round_up_to_multiple_of": 8,
    "mamba_chunk_size": 8,
}
POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_target_positions")
SIZES = {  # values for integers of that name, if larger
    "vocab_size": VOCABULARY,
    "decoder_vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "unpadded_vocab_size": VOCABULARY,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "word_embed_proj_dim", "emb_dim", "embedding_size"), 32),
    **dict.fromkeys(("input_embedding_size", "output_embedding_size", "embedding_dim", "lru_width"), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("num_decoder_attention_heads", "num_encoder_attention_heads"), 4),
    **dict.fromkeys(("head_dim", "swa_head_dim", "global_head_dim", "d_head", "dim_head", "kv_channels"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "index_head_dim"), 8),
    "qk_head_dim": 16,
    "rotary_dim": 4,
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 16),
    **dict.fromkeys(("gated_norm_rank", "hc_lowrank", "laurel_rank", "adapter_rank", "d_rel"), 4),
    "index_n_heads": 16,  # with fewer, rectified scores tie at 0, and the selected token depends on the shapes
    **dict.fromkeys(("intermediate_size", "ffn_dim", "ffn_hidden_size", "decoder_ffn_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "dense_intermediate_size"), 24),
    **dict.fromkeys(("shared_experts_intermediate_size", "shared_intermediate_size", "intermediate_size_mlp"), 24),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "expert_ffn_hidden_size"), 24),
    **dict.fromkeys(("dff", "dim_ff", "d_inner", "n_inner"), 48),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    "zero_expert_num": 2,
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k"), 2),
    **dict.fromkeys(("n_group", "num_expert_group", "topk_group"), 1),
    **dict.fromkeys(("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"), 1),
    "hidden_size_per_layer_input": 8,
    **dict.fromkeys(("linear_num_key_heads", "n_groups", "mamba_n_groups"), 2),
    "linear_num_value_heads": 4,
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state"), 16),
    "ple_embed_dim": 32,
    "ngram_vocab_size_base": VOCABULARY,
    "num_kv_shared_layers": 1,
    "type_vocab_size": 2,
    "shape_vocab_size": VOCABULARY,
    "pronunciation_vocab_size": VOCABULARY,
    "shape_embed_dim": 8,
    "pronunciation_embed_dim": 8,
}
STATE_HEADS = (  # names of the number of heads and of their size, whose product is a multiple of the hidden size
    *(("mamba_n_heads", "mamba_d_head"), ("n_mamba_heads", "mamba_headdim"), ("mamba_num_heads", "mamba_head_dim")),
    ("num_heads", "head_dim"),
)
STATE_HEAD_SIZE = 8
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "swa_num_key_value_heads", "num_global_key_value_heads")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks", "decoder_layers", "encoder_layers")
TOKENS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
MEDIA = ("image", "video", "audio", "vision", "media", "speech")
LEADING = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")  # number of first layers that differ
TRAILING = ("num_kv_shared_layers",)  # number of last layers that differ
PATTERNS = ("block_types",)  # repeated kinds of layers
COUNTED_FROM_1 = "ple_layer_ids"  # layers with n-gram embeddings, whose tables are also small
INDICES = ("mlp_only_layers", "moe_layers", "full_attn_idxs", "cross_attention_layers", "hybrid_layer_ids")


def tiny_config(config: Any) -> Any:
    """Return a small config of the same architecture.

    It has the fewest layers that show every kind in the config, at least two, and limits of a few tokens; sizes that
    are already small stay.
    """
    tiny = copy.deepcopy(config)
    _shrink(tiny)
    for name, value in TOKENS.items():
        _set_token(tiny, name, value)
    if getattr(tiny, "use_cache", None) is False:  # as some checkpoints were saved by their training
        tiny.use_cache = True
    text = tiny.get_text_config(decoder=True)
    if getattr(text, COUNTED_FROM_1, None):  # n-grams end at a token, which must exist and not occur in texts
        text.eos_token_id = VOCABULARY
    return tiny


def tiny_model(
    kind: Any, config: Any, *, attention: str, device: Any = "cpu", dtype: torch.dtype = torch.float32
) -> Any:
    """Return a random model of class `kind`, with logits spread enough that every key of a row matters.

    The default random streams are unchanged.
    """
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(7)
        model = kind._from_config(config, attn_implementation=attention, dtype=dtype).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0.0, 1.5 * parameter.shape[-1] ** -0.5)
                else:  # constant initial gates and scales would hide what they switch
                    parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.to(device)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run tiny passes on one thread: several would only wait for each other, for seconds on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' warnings about sizes and lengths."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _shrink(config: Any) -> None:
    single = _single_layers(config)
    values = dict(config.__dict__)
    tokens = [name for name, value in values.items() if name.endswith("token_id") and isinstance(value, int)]
    for place, name in enumerate(tokens):  # texts do not contain the tokens of other media
        medium = any(each in name for each in MEDIA)
        own = VOCABULARY + place if medium else min(values[name], VOCABULARY - 1)
        _set_token(config, name, TOKENS.get(name, own))
    values = dict(config.__dict__)
    layers = next((values[name] for name in LAYERS if isinstance(values.get(name), int)), 0)
    kept = _layers(values, layers, single)
    for name, value in values.items():
        small = _small(name, value, values, layers, kept)
        if small is not value:
            setattr(config, name, small)
        elif hasattr(value, "to_dict") and hasattr(value, "model_type"):
            _shrink(value)
    if wide := values.get("attention_hidden_size"):  # Zamba's has two streams
        config.attention_hidden_size = wide // values["hidden_size"] * config.hidden_size
        if isinstance(values.get("attention_head_dim"), int):
            config.attention_head_dim = config.attention_hidden_size // config.num_attention_heads
    if factor := values.get("qk_dim_factor"):  # xLSTM's cache rounds sizes up to multiples of 64, its layers do not
        config.hidden_size = config.embedding_dim = int(64 / factor)
    expand = values.get("mamba_expand") or values.get("expand")
    for heads, size in STATE_HEADS if expand else ():
        if isinstance(values.get(heads), int) and size in values:
            setattr(config, heads, int(expand * config.hidden_size) // STATE_HEAD_SIZE)
            setattr(config, size, STATE_HEAD_SIZE)
            if values.get("mamba_d_ssm") is not None:
                config.mamba_d_ssm = int(expand * config.hidden_size)
    if single:
        config.per_layer_config = {
            place: {
                name: 16 if name == "head_dim" else _small(name, value, values | single[layer], layers, kept)
                for name, value in single[layer].items()
            }
            for place, layer in enumerate(kept)
            if layer in single
        }


def _set_token(config: Any, name: str, value: int | None) -> None:
    """Set a token; where a class requires one, as Qwen3-ASR's does at the end, it is one that no text contains."""
    try:
        setattr(config, name, value)
    except StrictDataclassFieldValidationError:
        setattr(config, name, VOCABULARY)


def _single_layers(config: Any) -> dict[int, dict[str, Any]]:
    """Remove per-layer settings from the config until sizes are set, and return them."""
    if not getattr(config, "is_heterogeneous", False):
        return {}
    found = config.to_dict()["per_layer_config"]
    config.per_layer_config = None
    return {int(layer): own for layer, own in found.items()}


def _small(name: str, value: Any, values: Mapping[str, Any], layers: int, kept: list[int]) -> Any:
    """Return the new value of an attribute; the value itself if it stays."""
    if name in LAYERS and value == layers:
        return len(kept)
    if name in KV_HEADS and isinstance(value, int):
        heads = max(values.get(each) or 0 for each in ("num_attention_heads", "n_head", "n_heads"))
        return min(value, 4 if value >= heads else 2)
    if name in POSITIONS and isinstance(value, int):
        return min(value, 32 if values.get("rope_parameters") else 96)
    if isinstance(value, bool):
        return value
    if name in LEADING and isinstance(value, int):
        return sum(layer < value for layer in kept)
    if name in TRAILING and isinstance(value, int):
        return sum(layer >= layers - value for layer in kept)
    if name in WINDOWS and isinstance(value, int):
        sizes = sorted({size for each in WINDOWS if isinstance(size := values.get(each), int)})
        return min(value, MIN_WINDOW + APART * sizes.index(value))
    if isinstance(value, int):
        return min(value, SIZES.get(name, value), LIMITS.get(name, value))
    if name in PATTERNS and isinstance(value, list | tuple):
        return [value[layer % len(value)] for layer in kept]
    if name in INDICES and isinstance(value, list):
        return [place for place, layer in enumerate(kept) if layer in value]
    if name == COUNTED_FROM_1 and value:
        return [place for place, layer in enumerate(kept, start=1) if layer + 1 in value]
    if _per_layer(name, value, layers):
        return type(value)(value[layer] for layer in kept)
    if name == "rope_parameters" and isinstance(value, dict):
        return _rope(value)
    return value


def _layers(values: Mapping[str, Any], layers: int, single: Mapping[int, Any]) -> list[int]:
    """Return the first layers of each kind, ascending: one of each, or two for uniform models and shared layers."""
    found: dict[tuple[Any, ...], list[int]] = {}
    each = 2 if "num_mem_blocks" in values or "n_mamba_heads" in values else 1  # Zamba's hybrid layers share a block
    for layer in range(layers):
        kind: list[Any] = [str(value[layer]) for name, value in values.items() if _per_layer(name, value, layers)]
        kind += [value[layer % len(value)] for name, value in values.items() if name in PATTERNS and value]
        kind.append(str(single.get(layer)))
        kind += [layer < values[name] for name in LEADING if isinstance(values.get(name), int)]
        kind += [layer >= layers - values[name] for name in TRAILING if isinstance(values.get(name), int)]
        kind += [layer in values[name] for name in INDICES if isinstance(values.get(name), list)]
        kind += [layer + 1 in (values.get(COUNTED_FROM_1) or ())]
        alike = found.setdefault(tuple(kind), [])
        alike += [layer] * (len(alike) < each)
    kept = sorted(layer for alike in found.values() for layer in alike)
    return kept if len(kept) > 1 else list(range(min(layers, 2)))


def _per_layer(name: str, value: Any, layers: int) -> bool:
    listed = isinstance(value, list | tuple) and name not in (*INDICES, *PATTERNS, COUNTED_FROM_1)
    return bool(layers) and listed and len(value) == layers


def _rope(parameters: dict[str, Any]) -> dict[str, Any]:
    small = dict(parameters)
    for name, value in parameters.items():
        if isinstance(value, dict):
            small[name] = _rope(value)
        elif name == "original_max_position_embeddings" and value:
            small[name] = min(int(value), LIMITS[name])
        elif name in ("long_factor", "short_factor") and value:
            small[name] = list(value)[: int(8 * parameters.get("partial_rotary_factor", 1.0)) // 2]
        elif name == "mrope_section" and value:
            pairs = int(8 * parameters.get("partial_rotary_factor", 1.0)) // 2
            odd = 2 if value[0] == value[1] != value[-1] else 0  # the axis with another share, often time
            small[name] = [pairs - 2 * (pairs // 4) if axis == odd else pairs // 4 for axis in range(3)]
    return small
