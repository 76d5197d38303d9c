"""Checks draft models that have an encoder against their target, by their configs alone."""

from __future__ import annotations

from collections.abc import Sequence

from speculant.api.loading import find_draft_model, find_model, load_config
from speculant.cli.gguf_loading import is_gguf_model
from speculant.core.errors import ModelNotFoundError


def check_draft_encoders(name: str | None, drafts: Sequence[str]) -> None:
    """Check draft models before any weights are loaded.

    Args:
        name: folder or hub id of the target; None for the bundled model.
        drafts: those of its draft models.

    Raises:
        UnsupportedError: a draft model has an encoder and the target none, or theirs read inputs of different sizes.
    """
    from speculant.engines.hf.draft_encoder import has_encoder

    for draft in drafts:
        if is_gguf_model(draft) or is_gguf_model(name):
            continue
        try:
            configs = load_config(find_draft_model(draft)), load_config(find_model(name))
        except ModelNotFoundError:  # such as the folder of an adapter; loading it says what is missing
            continue
        has_encoder(*configs)
