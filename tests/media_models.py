"""Tiny random models that take images or sound, and prompts for them as a processor would make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlavaProcessor, PreTrainedTokenizerFast

VOCABULARY, PLACEHOLDER, BEGIN = 128, 100, 101
TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "head_dim": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    **TOKENS,
}
VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
GRID: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 16,
    "out_hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 24,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
PLACES: dict[str, Any] = {
    "image_token_id": PLACEHOLDER,
    "video_token_id": 103,
    "vision_start_token_id": BEGIN,
    "vision_end_token_id": 102,
    **TOKENS,
}
AXES = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}


def build_media_model(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return a tiny model and the inputs of a prompt: ids Int64[1, T], what the media are, and types of tokens."""
    torch.manual_seed(7)
    model, media, count, types = _MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():  # spread, so that every key of a row matters
            if parameter.ndim > 1:
                parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    begun = [BEGIN] if "image_grid_thw" in media else []
    ids = [
        1,
        *torch.randint(5, 90, (5,)).tolist(),
        *begun,
        *[PLACEHOLDER] * count,
        *torch.randint(5, 90, (7,)).tolist(),
    ]
    inputs = {"input_ids": torch.tensor([ids]), **media}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if types:
        inputs[types] = (inputs["input_ids"] == PLACEHOLDER).long()
    return model.eval(), inputs


TEMPLATE = (
    "{% for m in messages %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}<image> {% else %}{{ p['text'] }} {% endif %}{% endfor %}{% endfor %}"
)


def make_processor() -> Any:
    """Return a real processor for "llava", whose tokenizer knows the words w0, w1, ..."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil  # not in older releases

    words = {f"w{i}": i for i in range(VOCABULARY)}
    words["<image>"] = words.pop(f"w{PLACEHOLDER}")
    inner = Tokenizer(models.WordLevel(words, unk_token="w2"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="w0", bos_token="w1")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    images = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    return LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
        chat_template=TEMPLATE,
    )


Built = tuple[Any, dict[str, torch.Tensor], int, str]  # model, media, placeholders, the name of types of tokens


def _llava() -> Built:
    vision = {"model_type": "clip_vision_model", **VISION, "image_size": 8, "patch_size": 4, "projection_dim": 16}
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_index=PLACEHOLDER,
        vision_feature_layer=-1,
    )
    return transformers.LlavaForConditionalGeneration(config), {"pixel_values": torch.randn(1, 3, 8, 8)}, 4, ""


def _gemma3() -> Built:
    text = transformers.Gemma3TextConfig(
        **TEXT, sliding_window=6, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=8
    )
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=VISION | {"image_size": 8, "patch_size": 2},
        mm_tokens_per_image=4,
        image_token_index=PLACEHOLDER,
        boi_token_index=BEGIN,
        eoi_token_index=102,
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    return model, {"pixel_values": torch.randn(1, 3, 8, 8)}, 4, "token_type_ids"


def _paligemma() -> Built:
    text = transformers.GemmaConfig(**TEXT)
    vision = VISION | {"model_type": "siglip_vision_model", "image_size": 8, "patch_size": 4}
    config = transformers.PaliGemmaConfig(
        text_config=text, vision_config=vision, image_token_index=PLACEHOLDER, projection_dim=32
    )
    model = transformers.PaliGemmaForConditionalGeneration(config)
    return model, {"pixel_values": torch.randn(1, 3, 8, 8)}, 4, "token_type_ids"


def _mistral3() -> Built:
    vision = {"model_type": "pixtral", **VISION, "image_size": 16, "patch_size": 4, "head_dim": 8}
    config = transformers.Mistral3Config(
        vision_config=vision,
        text_config=transformers.MistralConfig(**TEXT, sliding_window=None),  # as in the files of Mistral Small 3
        image_token_index=PLACEHOLDER,
        spatial_merge_size=2,
    )
    media = {"pixel_values": torch.randn(1, 3, 16, 16), "image_sizes": torch.tensor([[16, 16]])}
    return transformers.Mistral3ForConditionalGeneration(config), media, 4, ""


def _qwen3_vl() -> Built:
    vision = GRID | {"deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    config = transformers.Qwen3VLConfig(text_config=TEXT | AXES, vision_config=vision, **PLACES)
    return transformers.Qwen3VLForConditionalGeneration(config), _patches(), 4, "mm_token_type_ids"


def _qwen3_5() -> Built:
    states = {f"linear_{name}": size for name, size in zip(("num_key_heads", "num_value_heads"), (2, 4), strict=True)}
    states |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    text = TEXT | states | {"layer_types": ["linear_attention", "full_attention"]}
    text["rope_parameters"] = AXES["rope_parameters"] | {"partial_rotary_factor": 1.0}
    vision = GRID | {"num_position_embeddings": 16}
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision, **PLACES)
    return transformers.Qwen3_5ForConditionalGeneration(config), _patches(), 4, "mm_token_type_ids"


def _qwen2_audio() -> Built:
    audio = {"num_mel_bins": 8, "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2}
    config = transformers.Qwen2AudioConfig(
        audio_config=audio | {"encoder_ffn_dim": 24, "max_source_positions": 8},
        text_config=transformers.Qwen2Config(**TEXT),
        audio_token_index=PLACEHOLDER,
    )
    media = {"input_features": torch.randn(1, 8, 16), "feature_attention_mask": torch.ones(1, 16, dtype=torch.long)}
    return transformers.Qwen2AudioForConditionalGeneration(config), media, 4, ""


def _mllama() -> Built:
    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_global_layers": 1}
    vision |= {"attention_heads": 2, "image_size": 8, "patch_size": 4, "vision_output_dim": 32, "max_num_tiles": 1}
    text = TEXT | {"num_hidden_layers": 3, "cross_attention_layers": [1]}
    config = transformers.MllamaConfig(
        text_config=text | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        vision_config=vision | {"intermediate_layers_indices": [0], "supported_aspect_ratios": [[1, 1]]},
        image_token_index=PLACEHOLDER,
    )
    media = {"pixel_values": torch.randn(1, 1, 1, 3, 8, 8), "aspect_ratio_ids": torch.tensor([[1]])}
    media["aspect_ratio_mask"] = torch.ones(1, 1, 1, dtype=torch.long)
    return transformers.MllamaForConditionalGeneration(config), media, 1, ""


def _qwen2_vl() -> Built:
    vision = {"depth": 2, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2, "in_channels": 3}
    vision |= {name: GRID[name] for name in ("patch_size", "spatial_merge_size", "temporal_patch_size")}
    config = transformers.Qwen2VLConfig(text_config=TEXT | AXES, vision_config=vision, **PLACES)
    return transformers.Qwen2VLForConditionalGeneration(config), _patches(), 4, "mm_token_type_ids"


def _qwen2_5_vl() -> Built:
    vision = GRID | {"window_size": 16, "fullatt_block_indexes": [1]}
    config = transformers.Qwen2_5_VLConfig(text_config=TEXT | AXES, vision_config=vision, **PLACES)
    return transformers.Qwen2_5_VLForConditionalGeneration(config), _patches(), 4, "mm_token_type_ids"


def _glm4v() -> Built:
    axes = AXES["rope_parameters"] | {"partial_rotary_factor": 1.0}
    places = {"image_token_id": PLACEHOLDER, "video_token_id": 103, "image_start_token_id": BEGIN}
    places |= {"image_end_token_id": 102, "video_start_token_id": 104, "video_end_token_id": 105}
    vision = GRID | {"image_size": 16}
    config = transformers.Glm4vConfig(
        text_config=TEXT | {"rope_parameters": axes}, vision_config=vision, **places, **TOKENS
    )
    return transformers.Glm4vForConditionalGeneration(config), _patches(), 4, "mm_token_type_ids"


def _internvl() -> Built:
    config = transformers.InternVLConfig(
        vision_config=VISION | {"image_size": [8, 8], "patch_size": [2, 2]},
        text_config=transformers.Qwen2Config(**TEXT),
        image_token_id=PLACEHOLDER,
    )
    return transformers.InternVLForConditionalGeneration(config), {"pixel_values": torch.randn(1, 3, 8, 8)}, 4, ""


def _idefics3() -> Built:
    config = transformers.Idefics3Config(
        text_config=transformers.LlamaConfig(**TEXT),
        vision_config=VISION | {"image_size": 16, "patch_size": 4},
        image_token_id=PLACEHOLDER,
        scale_factor=2,
        pad_token_id=0,
    )
    media = {"pixel_values": torch.randn(1, 1, 3, 16, 16)}
    return transformers.Idefics3ForConditionalGeneration(config), media, 4, ""


def _gemma4() -> Built:
    text = TEXT | {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"], "global_head_dim": 8}
    text |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 0}
    vision = VISION | {"num_key_value_heads": 2, "head_dim": 8, "patch_size": 4, "pooling_kernel_size": 2}
    config = transformers.Gemma4Config(
        text_config=text,
        vision_config=vision | {"position_embedding_size": 16},
        audio_config=None,
        image_token_id=PLACEHOLDER,
        boi_token_id=BEGIN,
        eoi_token_id=102,
        video_token_id=103,
        audio_token_id=104,
    )
    places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="xy"), -1).reshape(1, 16, 2)
    media = {"pixel_values": torch.randn(1, 16, 48), "image_position_ids": places}
    return transformers.Gemma4ForConditionalGeneration(config), media, 4, "mm_token_type_ids"


def _llama4() -> Built:
    text = TEXT | {"intermediate_size_mlp": 48, "num_local_experts": 2, "num_experts_per_tok": 1, "moe_layers": [1]}
    text |= {"attention_chunk_size": 8, "layer_types": ["chunked_attention", "full_attention"]}
    vision = VISION | {"intermediate_size": 64, "image_size": 16, "patch_size": 4, "pixel_shuffle_ratio": 0.5}
    vision |= {"vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16}
    config = transformers.Llama4Config(
        text_config=text,
        vision_config=vision,
        image_token_index=PLACEHOLDER,
        boi_token_index=BEGIN,
        eoi_token_index=102,
    )
    return transformers.Llama4ForConditionalGeneration(config), {"pixel_values": torch.randn(1, 3, 16, 16)}, 4, ""


def _voxtral() -> Built:
    audio = {"num_mel_bins": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
    config = transformers.VoxtralConfig(
        audio_config=audio | {"intermediate_size": 64, "max_source_positions": 8},
        text_config=transformers.LlamaConfig(**TEXT),
        audio_token_id=PLACEHOLDER,
    )
    return transformers.VoxtralForConditionalGeneration(config), {"input_features": torch.randn(1, 8, 16)}, 2, ""


def _patches() -> dict[str, torch.Tensor]:
    """Return an image of 4 x 4 patches as the processors of Qwen's family cut it."""
    return {"pixel_values": torch.randn(16, 3 * 2 * 4 * 4), "image_grid_thw": torch.tensor([[1, 4, 4]])}


_MODELS: dict[str, Callable[[], Built]] = {
    "llava": _llava,
    "gemma3": _gemma3,
    "paligemma": _paligemma,
    "mistral3": _mistral3,
    "qwen3_vl": _qwen3_vl,
    "qwen3_5": _qwen3_5,
    "qwen2_audio": _qwen2_audio,
    "mllama": _mllama,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "glm4v": _glm4v,
    "internvl": _internvl,
    "idefics3": _idefics3,
    "gemma4": _gemma4,
    "llama4": _llama4,
    "voxtral": _voxtral,
}
