"""PARD models, which are named like heads: loaded as models, and passed to the drafter through their caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from speculant.api.draft_caches import open_draft_caches
from speculant.api.loading import load_model
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.fitting import check_decoder
from speculant.drafters.heads.drafter import LoadedHead
from speculant.drafters.heads.pard import PARD
from speculant.drafters.heads.pard.head import PardHead
from speculant.engines.hf.views.target_parts import HFTargetParts


def open_pard(folder: Path, model: Any) -> LoadedHead:
    """Return a PARD model on its target, in the target's dtype and on its device.

    Args:
        folder: folder of the PARD model.
        model: the target.

    Raises:
        ModelNotFoundError, OutOfMemoryError: it cannot be loaded.
        UnsupportedError, TokenizerError: its tokens differ from the target's, or the target has an encoder.
    """
    target = HFTargetParts(model)
    check_decoder("PARD models", PARD.decoder_only, target)
    draft, _ = load_model(str(folder), dtype=str(model.dtype).removeprefix("torch."), device=str(model.device))
    caches = open_draft_caches(draft, target.vocabulary)
    vocabulary, mask = int(draft.config.get_text_config(decoder=True).vocab_size), int(draft.config.pard_token)
    if not 0 <= mask < vocabulary:
        raise UnsupportedError(
            f"the PARD model {folder} names token {mask} as its mask (pard_token), and it has {vocabulary} tokens: its "
            "config is wrong. Fetch it again."
        )
    head = PardHead(caches, mask, vocabulary=vocabulary, target_vocabulary=target.vocabulary)
    return LoadedHead(head, target, "pard", "pard", caches.notes)
