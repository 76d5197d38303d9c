"""Tiny random encoder-decoders, and draft models made of them."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers

VOCABULARY = 128
TOKENS: dict[str, Any] = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
BART: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 200,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    **TOKENS,
}
T5: dict[str, Any] = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    **TOKENS,
}
WHISPER: dict[str, Any] = {
    **{name: value for name, value in BART.items() if name not in ("max_position_embeddings", "forced_eos_token_id")},
    "num_mel_bins": 8,
    "max_source_positions": 16,
    "max_target_positions": 64,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
LED: dict[str, Any] = {
    **{name: value for name, value in BART.items() if name != "max_position_embeddings"},
    "attention_window": 8,
    "max_decoder_position_embeddings": 200,
    "max_encoder_position_embeddings": 200,
}
LONG: dict[str, Any] = {"local_radius": 4, "global_block_size": 4}
EXPERTS: dict[str, Any] = {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 2}
SOURCE = torch.randint(5, 120, (1, 11), generator=torch.Generator().manual_seed(5))


def build_encoder_decoder(name: str, attention: str = "sdpa", **changes: Any) -> Any:
    """Return a tiny random model whose logits are spread, so that every key of a row matters."""
    torch.manual_seed(3)
    kinds: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "bart": (transformers.BartForConditionalGeneration, transformers.BartConfig, BART),
        "marian": (transformers.MarianMTModel, transformers.MarianConfig, BART),
        "m2m_100": (transformers.M2M100ForConditionalGeneration, transformers.M2M100Config, BART),
        "t5": (transformers.T5ForConditionalGeneration, transformers.T5Config, T5),
        "mbart": (transformers.MBartForConditionalGeneration, transformers.MBartConfig, BART),
        "plbart": (transformers.PLBartForConditionalGeneration, transformers.PLBartConfig, BART),
        "pegasus": (transformers.PegasusForConditionalGeneration, transformers.PegasusConfig, BART),
        "blenderbot": (transformers.BlenderbotForConditionalGeneration, transformers.BlenderbotConfig, BART),
        "led": (transformers.LEDForConditionalGeneration, transformers.LEDConfig, LED),
        "mt5": (transformers.MT5ForConditionalGeneration, transformers.MT5Config, T5),
        "longt5": (transformers.LongT5ForConditionalGeneration, transformers.LongT5Config, T5 | LONG),
        "switch": (
            transformers.SwitchTransformersForConditionalGeneration,
            transformers.SwitchTransformersConfig,
            T5 | EXPERTS,
        ),
        "umt5": (transformers.UMT5ForConditionalGeneration, transformers.UMT5Config, T5),
        "whisper": (transformers.WhisperForConditionalGeneration, transformers.WhisperConfig, WHISPER),
    }
    kind, config, sizes = kinds[name]
    chosen = {"attn_implementation": attention} if attention else {}
    model = kind._from_config(config(**sizes | changes), **chosen).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def noisy_copy(model: Any, size: float, *, encoder: bool) -> Any:
    """Return a copy of a model with noise on its weights, or on those of its decoder alone."""
    found, noise = copy.deepcopy(model), torch.Generator().manual_seed(1)
    kept = set() if encoder else {id(each) for each in found.get_encoder().parameters()}
    with torch.no_grad():
        for weight in found.parameters():
            if id(weight) not in kept:
                weight.add_(torch.randn(weight.shape, generator=noise) * size)
    return found


def count_encodings(draft: Any) -> list[int]:
    """Return a list that grows with every pass of a draft model's encoder."""
    found = list[int]()
    draft.get_encoder().register_forward_hook(lambda *_: found.append(1))
    return found
