"""The targets of `methods_table.py` and `methods_identity.py`, their draft models, and real prompts.

`inflated` is the bundled model with additional layers and larger MLPs that do not change its output, so that a pass
reads as many weights as one of the 0.5 B shape ($SPECULANT_DATA/models/shape-0.5b: 494 million, most of them in 24
layers). Its draft model is the bundled one, unchanged.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from speculant.api.loading import bundled_draft_model, load_model
from speculant.bench.systems.inflate import inflate
from speculant.cli.loading import silence_loading
from speculant.core.tree import Int32
from stories import FIRST

TARGETS = ("bundled", "inflated", "stories260k")
LAYERS, MLP = 24, 26496  # 24 x (196,608 + 768 x 26,496) + 4096 x 256 weights = 494 million, as the 0.5 B shape


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A target with its tokenizer and draft model.

    Attributes:
        draft_model: the draft model, or None.
        draft_name: its name in the results.
        draft_tokenizer: the draft model's tokenizer, or None.
    """

    model: Any
    tokenizer: Any
    draft_model: Any
    draft_name: str | None
    draft_tokenizer: Any = None


def data_folder() -> Path:
    """Return the folder of texts and models."""
    if "SPECULANT_DATA" not in os.environ:
        raise SystemExit("set SPECULANT_DATA to the folder with the texts")
    return Path(os.environ["SPECULANT_DATA"])


def load_pair(target: str, *, dtype: str, draft_model: str | None, noise: float | None = None) -> Pair:
    """Load a target and its draft model.

    Args:
        target: one of `TARGETS`.
        dtype: dtype of both models.
        draft_model: a folder; None for the bundled one, which fits only the bundled model.
        noise: if not None, draft with a copy of the target with noise of this share of each weight's spread.
    """
    silence_loading()
    model, tokenizer = load_model(
        str(data_folder() / "models/stories260K") if target == "stories260k" else None, dtype=dtype, device="cpu"
    )
    found = draft_model
    if found is None and target != "stories260k":
        found = str(bundled_draft_model())
    draft, draft_tokenizer, name = None, None, None
    if noise is not None:
        draft, draft_tokenizer = noisy(copy.deepcopy(model), noise), tokenizer
        name = f"{target} with noise of {noise:g}"
    elif found is not None:
        draft, draft_tokenizer = load_model(found, dtype=dtype, device="cpu")
        name = Path(found).name if draft_model else "bundled"
    if target == "inflated":
        model = inflate(model, layers=LAYERS, mlp=MLP)
    return Pair(model, tokenizer, draft, name, draft_tokenizer)


def noisy(model: Any, share: float) -> Any:
    """Return the model with noise in its weights, relative to each weight's spread."""
    source = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in model.parameters():
            weight += share * weight.std() * torch.randn(weight.shape, generator=source).to(weight.dtype)
    return model


def story_prompts(tokenizer: Any, *, count: int, tokens: int) -> list[Int32]:
    """Return the first tokens Int32[T] of longer held-out stories; earlier stories were used to choose settings."""
    text = (data_folder() / "text/tinystories/heldout.txt").read_text(encoding="utf-8")
    found: list[Int32] = []
    for story in text.split("<|endoftext|>")[FIRST:]:
        ids = tokenizer(story.strip())["input_ids"]
        if len(ids) > tokens:
            found.append(np.array(ids[:tokens], np.int32))
        if len(found) == count:
            return found
    raise SystemExit(f"there are {len(found)} held-out stories of more than {tokens} tokens, not {count}")
