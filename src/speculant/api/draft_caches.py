"""Draft models: the default one, and the function that opens their caches for the drafters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from speculant.api.loading import bundled_draft_model, is_bundled, load_model
from speculant.api.options import check_model_object
from speculant.core.engine import TargetCache
from speculant.core.errors import UnsupportedError
from speculant.core.tree import Int32
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.engine import HFEngine


@dataclass(frozen=True, slots=True, eq=False)
class DraftCaches:
    """Opens caches of a draft model that is loaded and prepared; speculators of one target may share it."""

    engine: HFEngine

    def __call__(self, prompt: Int32) -> TargetCache:
        """Return a cache for a prompt Int32[T], which is not read yet."""
        return self.engine.open(torch.from_numpy(prompt).long()[None].to(self.engine.model.device))


def default_draft_model(target: Any) -> Any:
    """Return the bundled draft model, in the target's dtype and on its device, if the target is the bundled model.

    Returns:
        The model; None for other targets, for which users name a draft model.
    """
    if not (source := target.name_or_path) or not is_bundled(source):
        return None
    dtype = str(target.dtype).removeprefix("torch.")
    return load_model(str(bundled_draft_model()), dtype=dtype, device=str(target.device))[0]


def open_draft_caches(draft_model: Any, vocabulary: int) -> DraftCaches:
    """Return what opens caches of a draft model, which is loaded where it is a name.

    Args:
        draft_model: a model, its name, or what this function returned for the same target, which is used again.
        vocabulary: V of the target.

    Raises:
        UnsupportedError: its vocabulary is another one.
    """
    if isinstance(draft_model, DraftCaches):
        return draft_model
    model = load_model(str(draft_model))[0] if isinstance(draft_model, str | Path) else draft_model
    check_model_object(model, None)
    own = model.config.get_text_config(decoder=True).vocab_size
    if abs(own - vocabulary) > max(128, vocabulary // 100):  # models of a family pad their vocabularies differently
        raise UnsupportedError(
            f"the draft model has {own} tokens and the target {vocabulary}: they need the same tokenizer. "
            "Name a smaller model of the target's family."
        )
    return DraftCaches(HFEngine(model, acceleration=prepare_model(model, None)))
