"""The default draft model."""

from __future__ import annotations

import pytest
import torch

from models import tiny_model
from speculant.api.draft_caches import default_draft_model
from speculant.api.loading import load_model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_default_draft_model_is_loaded_like_its_target(dtype: str) -> None:
    """Guards that target and draft model run in one dtype on one device, without a word from the user."""
    target, _ = load_model(dtype=dtype, device="cpu")
    draft, tokenizer = default_draft_model(target)
    assert len(tokenizer) == target.config.vocab_size
    assert draft.dtype == getattr(torch, dtype)
    assert draft.device == target.device


def test_other_targets_have_no_default_draft_model() -> None:
    """Guards models that were made in memory and have no name."""
    assert default_draft_model(tiny_model("llama")) == (None, None)
