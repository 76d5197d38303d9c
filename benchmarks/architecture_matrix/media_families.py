"""What single families need beside the general sizes and inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from architecture_matrix.catalogue import IMAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a model type differs from most others in what is made of it.

    Attributes:
        given: options its config is made with.
        changes: options of its small config.
        media: makes what the media are, of the config; None for the first known form that the class reads.
        count: placeholders in a prompt; 0 for as many as the class says that it needs.
        more: makes further inputs, of the others.
        ready: does to a model what its checkpoints do.
    """

    given: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    media: Callable[[Any], dict[str, Any]] | None = None
    count: int = 0
    more: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    ready: Callable[[Any], None] | None = None


def images(height: int = 16, **others: Any) -> Callable[[Any], dict[str, Any]]:
    """Return what makes one random square image, and other inputs beside it."""
    return lambda _: {"pixel_values": torch.randn(1, 3, height, height), **others}


def sound(frames: int, *, last: bool = False, **others: Any) -> Callable[[Any], dict[str, Any]]:
    """Return what makes the features of a sound, [1, 8, frames], or [1, frames, 8] where they come last."""
    shape = (1, frames, 8) if last else (1, 8, frames)
    return lambda _: {"input_features": torch.randn(shape), **others}


def _flattened(config: Any) -> dict[str, Any]:
    """Return six patches of an image, each behind its row and column."""
    places = torch.tensor([[[1, 1], [1, 2], [1, 3], [2, 1], [2, 2], [2, 3]]])
    patches = torch.randn(1, 6, config.vision_config.patch_embed_hidden_size)
    return {"flattened_patches": torch.cat([places, patches], dim=-1)}


def _placed_patches(_: Any) -> dict[str, Any]:
    """Return an image of 4 x 4 patches with their places."""
    places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="xy"), -1).reshape(1, 16, 2)
    return {"pixel_values": torch.randn(1, 16, 48), "image_position_ids": places}


def _columns(inputs: dict[str, Any], start: int, end: int | None = None) -> torch.Tensor:
    """Return Int64[1, T], 1 for these tokens of a prompt, of which the sixth is the last before an image."""
    found = torch.zeros_like(inputs["input_ids"])
    found[:, start:end] = 1
    return found


def _tiles_seen(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return that no token before an image sees it, and those behind see the first of its two tiles."""
    first = _columns(inputs, 6)
    return {"cross_attention_mask": torch.stack([first, torch.zeros_like(first)], dim=-1)[:, :, None]}


def _name_composers(model: Any) -> None:
    """Give a model of piano music its composers."""
    composers = range(model.config.composer_vocab_size)
    model.generation_config.composer_to_feature_token = {f"composer{each}": 3 + each for each in composers}


LEFT_OUT = {  # classes that write no text token by token, by their model types
    "diffusion_gemma": "denoises blocks of tokens, and writes none one after the other.",
    "dia": "writes nine channels of audio codes at once, not text.",
    "pi0": "predicts a robot's actions by flow matching, and writes no text.",
    "vibevoice": "writes speech by diffusion between its tokens, not text.",
    "qwen2_5_omni": "decodes with its thinker, which is a class of its own here, and a talker, which writes sound.",
    "qwen3_omni_moe": "decodes with its thinker, which is a class of its own here, and a talker, which writes sound.",
}
BUILT: dict[str, Callable[[], Any]] = {}
_SMALL_VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
_SMALL_PATCHES = {"vision_config": {"image_size": 8, "patch_size": 2}, "mm_tokens_per_image": 4}
FAMILIES: dict[str, Family] = {
    "aria": Family(changes={"projector_patch_to_query_dict": {16: 4}, "max_value_projector_patch_to_query_dict": 4}),
    "deepseek_vl_hybrid": Family(media=lambda _: images()(_) | {"high_res_pixel_values": torch.randn(1, 3, 16, 16)}),
    "gemma3": Family(changes=_SMALL_PATCHES),
    "shieldgemma2": Family(changes=_SMALL_PATCHES),
    "instructblip": Family(media=lambda _: images()(_) | {"qformer_input_ids": torch.tensor([[5, 6, 7]])}),
    "instructblipvideo": Family(
        media=lambda _: {
            "pixel_values": torch.randn(1, 2, 3, 16, 16),
            "qformer_input_ids": torch.tensor([[5, 6, 7]]),
        }
    ),
    "llava": Family(changes={"vision_feature_layer": -1}, media=images()),
    "vipllava": Family(changes={"vision_feature_layers": [-1, -2]}, media=images()),
    **dict.fromkeys(
        ("llava_next", "llava_next_video", "llava_onevision"),
        Family(
            changes={"vision_feature_layer": -1, "image_grid_pinpoints": [[16, 16]]},
            media=lambda _: {"pixel_values": torch.randn(1, 2, 3, 16, 16), "image_sizes": torch.tensor([[16, 16]])},
        ),
    ),
    "llama4": Family(
        changes={
            "vision_config": {"intermediate_size": 128, "vision_output_dim": 32}
            | {"projector_input_dim": 32, "projector_output_dim": 32}
        },
        media=images(),
    ),
    "gemma3n": Family(  # its tower is timm's, of one size
        changes={"vision_config": {"hidden_size": 2048}},
        media=images(64),
        count=256,
    ),
    "gemma4": Family(
        given={
            "vision_config": _SMALL_VISION
            | {"num_key_value_heads": 2, "head_dim": 8, "patch_size": 4, "pooling_kernel_size": 2}
            | {"position_embedding_size": 16}
        },
        media=_placed_patches,
        count=4,
    ),
    "gemma4_unified": Family(
        given={
            "vision_config": {"patch_size": 4, "pooling_kernel_size": 1, "mm_posemb_size": 16}
            | {"mm_embed_dim": 32, "output_proj_dims": 32}
        },
        media=_placed_patches,
        count=16,
    ),
    "mllama": Family(
        given={
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 24,
                "num_hidden_layers": 2,
                "num_global_layers": 1,
            }
            | {"attention_heads": 2, "image_size": 16, "patch_size": 4, "vision_output_dim": 64, "max_num_tiles": 2}
            | {"intermediate_layers_indices": [0], "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]]}
        },
        media=lambda _: {
            "pixel_values": torch.randn(1, 1, 2, 3, 16, 16),
            "aspect_ratio_ids": torch.tensor([[1]]),
            "aspect_ratio_mask": torch.tensor([[[1, 0]]]),
        },
        count=1,
        more=_tiles_seen,
    ),
    "voxtral": Family(changes={"audio_config": {"intermediate_size": 128}}, media=sound(16), count=2),
    "glmasr": Family(changes={"audio_config": {"intermediate_size": 128}}),
    "qwen2_audio": Family(media=sound(16, feature_attention_mask=torch.ones(1, 16, dtype=torch.long)), count=4),
    **dict.fromkeys(
        ("granite_speech", "granite_speech_plus"),
        Family(
            changes={
                "window_size": 15,
                "encoder_config": {"input_dim": 8},
                "projector_config": {"encoder_hidden_size": 32},
            },
            media=sound(16, last=True, input_features_mask=torch.ones(1, 6, dtype=torch.bool)),
            count=6,
        ),
    ),
    "qwen3_asr": Family(media=sound(100, input_features_mask=torch.ones(1, 100, dtype=torch.long))),
    "fun_asr_nano": Family(
        media=lambda _: {
            "input_features": torch.randn(1, 16, 56),
            "input_features_mask": torch.ones(1, 16, dtype=torch.long),
        }
    ),
    "voxtral_realtime": Family(media=sound(512)),
    "hunyuan_vl": Family(count=8),  # two rows of two, each with a separator, between a begin and an end
    **dict.fromkeys(
        ("muse_glimmer", "muse_spark"), Family(changes={"out_hidden_size": 128, "projector_hidden_size": 32})
    ),
    "granite_docling": Family(
        media=lambda _: {
            "pixel_values": torch.randn(1, 1, 3, 16, 16),
            "pixel_attention_mask": torch.ones(1, 1, dtype=torch.bool),
        }
    ),
    "granite4_vision": Family(
        changes={"spatial_target_layers": [0, 1, 0, 1], "vision_feature_layer": -1, "image_grid_pinpoints": [[16, 16]]}
        | {"qformer_config": {"num_attention_heads": 4}},
        media=lambda _: {"pixel_values": torch.randn(1, 2, 3, 16, 16), "image_sizes": torch.tensor([[16, 16]])},
    ),
    "molmo2": Family(
        changes={
            "adapter_config": {"vision_feature_layer": [-1, -2], "text_hidden_size": 32},
            "image_patch_id": IMAGE,
        },
        media=lambda _: {
            "pixel_values": torch.randn(1, 16, 48),
            "image_token_pooling": torch.arange(16).reshape(4, 4),
            "image_grids": torch.tensor([[0, 0, 2, 2]]),
            "image_num_crops": torch.tensor([1]),
        },
        count=4,
    ),
    "chameleon": Family(
        changes={"image_token_id": IMAGE},
        media=images(),
    ),
    "emu3": Family(
        changes={"image_token_id": IMAGE},
        media=lambda _: images()(_) | {"image_sizes": torch.tensor([[16, 16]])},
    ),
    "idefics": Family(
        media=lambda _: {"pixel_values": torch.randn(1, 1, 3, 16, 16)},
        more=lambda inputs: {"image_attention_mask": _columns(inputs, 6).float()[..., None]},
    ),
    "kosmos-2": Family(
        changes={"latent_query_num": 4},
        media=images(),
        count=4,
        more=lambda inputs: {"image_embeds_position_mask": _columns(inputs, 6, 10)},
    ),
    "kosmos-2.5": Family(
        changes={"latent_query_num": 4},
        media=_flattened,
        count=4,
        more=lambda inputs: {"image_embeds_position_mask": _columns(inputs, 6, 10)},
    ),
    "fuyu": Family(media=lambda _: {"pixel_values": torch.randn(1, 4, 2700)}, count=4),
    **dict.fromkeys(
        ("minicpmv4_6", "minicpmv4_7", "minicpm_ocr"),
        Family(media=lambda _: {"pixel_values": torch.randn(1, 3, 4, 64), "target_sizes": torch.tensor([[4, 4]])}),
    ),
    "lfm2_vl": Family(
        media=lambda _: {
            "pixel_values": torch.randn(1, 16, 48),
            "spatial_shapes": torch.tensor([[4, 4]]),
            "pixel_attention_mask": torch.ones(1, 16, dtype=torch.long),
        }
    ),
    "video_llama_3": Family(
        media=lambda _: {
            "pixel_values": torch.randn(16, 48),
            "image_grid_thw": torch.tensor([[1, 4, 4]]),
            "image_merge_sizes": torch.tensor([2]),
        }
    ),
    "blip": Family(
        changes={"text_config": {"encoder_hidden_size": 32, "bos_token_id": 1, "sep_token_id": None}}, media=images()
    ),
    "whisper": Family(changes={"num_mel_bins": 8, "max_source_positions": 8}, media=sound(16)),
    "speech_to_text": Family(changes={"input_feat_per_channel": 8, "conv_channels": 32}, media=sound(16, last=True)),
    "pop2piano": Family(
        media=lambda config: {"input_features": torch.randn(1, 8, config.d_model)}, ready=_name_composers
    ),
    "t5gemma": Family(given={each: {"hidden_size": 32, "query_pre_attn_scalar": 8} for each in ("encoder", "decoder")}),
    **dict.fromkeys(
        ("seamless_m4t (speech)", "seamless_m4t_v2 (speech)"),
        Family(
            changes={"feature_projection_input_dim": 8, "speech_encoder_layers": 2, "speech_encoder_attention_heads": 4}
            | {"speech_encoder_intermediate_size": 48, "num_conv_pos_embedding_groups": 4},
            media=sound(32, last=True),
        ),
    ),
    "moonshine_streaming": Family(
        given={"num_key_value_heads": 8, "encoder_config": {"hidden_size": 32, "sliding_windows": [[6, 0]] * 6}}
    ),
    "pix2struct": Family(changes={"text_config": {"d_kv": 8}, "vision_config": {"d_kv": 8}}, media=_flattened),
    "udop": Family(media=lambda _: {}, more=lambda inputs: {"bbox": torch.rand(1, inputs["input_ids"].shape[1], 4)}),
}
