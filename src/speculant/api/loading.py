"""Getting models, tokenizers and heads: the functions of `engines.hf`, and the bundled head of a method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from speculant.core.errors import UsageError
from speculant.engines.hf.loading import (
    check_dtype,
    check_quantize,
    default_device,
    estimate_bytes,
    load_config,
    load_model,
    load_processor,
    load_tokenizer,
)
from speculant.engines.hf.sources import (
    bundled_draft_model,
    bundled_heads,
    bundled_model,
    find_draft_model,
    find_model,
    find_tokenizer,
    is_bundled,
    means_bundled,
)

if TYPE_CHECKING:
    from speculant.registry import Method

__all__ = [
    "bundled_draft_model",
    "bundled_head_folder",
    "bundled_heads",
    "bundled_model",
    "check_dtype",
    "check_quantize",
    "default_device",
    "estimate_bytes",
    "find_draft_model",
    "find_model",
    "find_tokenizer",
    "is_bundled",
    "load_config",
    "load_model",
    "load_processor",
    "load_tokenizer",
    "means_bundled",
]


def bundled_head_folder(method: Method | None = None) -> Path:
    """Return the folder of the bundled model's head that a method drafts with; the best one for no method.

    Raises:
        UsageError: the method drafts with none of them.
    """
    kinds = ("*",) if method is None else method.heads
    for folder in bundled_heads():
        if "*" in kinds or folder.name in kinds:
            return folder
    raise UsageError(
        f"none of the heads that come with the package is for the method '{method.name if method else ''}'; there are "
        f"{', '.join(folder.name for folder in bundled_heads())}. Name another head, or leave it out."
    )
