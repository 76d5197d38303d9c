"""What single families need beside the general sizes and inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a model type differs from what is made of most.

    Attributes:
        given: options its config is made with.
        changes: options of its small config.
        media: makes what the media are, of the config; None for the first known form that the class reads.
        count: placeholders in a prompt; 0 for as many as the class says that it needs.
        more: makes further inputs, of the others.
    """

    given: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    media: Callable[[Any], dict[str, Any]] | None = None
    count: int = 0
    more: Callable[[dict[str, Any]], dict[str, Any]] | None = None


def images(height: int = 16, **others: Any) -> Callable[[Any], dict[str, Any]]:
    """Return what makes one random square image, and other inputs beside it."""
    return lambda _: {"pixel_values": torch.randn(1, 3, height, height), **others}


BUILT: dict[str, Callable[[], Any]] = {}
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
    "granite_docling": Family(
        media=lambda _: {
            "pixel_values": torch.randn(1, 1, 3, 16, 16),
            "pixel_attention_mask": torch.ones(1, 1, 16, 16, dtype=torch.bool),
        }
    ),
}
