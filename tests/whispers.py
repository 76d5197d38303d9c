"""A tiny random Whisper that hears a second at a time."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

RATE, VOCABULARY = 16_000, 128
END, START, NO_TIMES = 5, 2, 90
LANGUAGES, TASKS = {"<|de|>": 80, "<|en|>": 81}, {"transcribe": 82, "translate": 83}


def build_whisper(*, multilingual: bool = False) -> tuple[Any, Any]:
    """Return the model and its processor; it knows two languages and translates, or English alone."""
    torch.manual_seed(3)
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": END, "decoder_start_token_id": START}
    limits = {"num_mel_bins": 8, "max_source_positions": 50, "max_target_positions": 44}
    config = WhisperConfig(vocab_size=VOCABULARY, **sizes, **heads, **tokens, **limits)
    config.suppress_tokens = config.begin_suppress_tokens = None
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
    model.generation_config = GenerationConfig(
        **tokens,
        no_timestamps_token_id=NO_TIMES,
        begin_suppress_tokens=[7],
        max_length=40,
        is_multilingual=multilingual,
        return_timestamps=False,
        **({"lang_to_id": LANGUAGES, "task_to_id": TASKS} if multilingual else {}),
        prev_sot_token_id=3,
        max_initial_timestamp_index=20,
    )
    # As in byte-level vocabularies, some tokens begin with a space (Ġ), and some split a character (é is Ã©).
    kinds = {6: "Ġw{}", 7: "w{}Ã", 8: "©w{}"}
    words = {kinds.get(i % 9, "w{}").format(i): i for i in range(VOCABULARY)}
    tokenizer = WhisperTokenizer(vocab=words, merges=[], unk_token="w4", bos_token="w1", eos_token=f"w{END}")
    return model, WhisperProcessor(WhisperFeatureExtractor(feature_size=8, chunk_length=1), tokenizer)
