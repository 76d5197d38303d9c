"""Trained heads as starting points."""

from __future__ import annotations

from typing import Any

from torch import nn

from speculant.core.errors import UsageError
from speculant.drafters.heads.checkpoints.formats import load_head
from speculant.drafters.heads.head import TargetParts
from speculant.training.texts import Int64


def load_trained_head(source: str, kind: str, target: TargetParts, _tokenizer: Any, _counts: Int64) -> nn.Module:
    """Load a head from a folder or the hub.

    Args:
        source: the folder or hub id.
        kind: required kind.
        target: target of the head.
        _tokenizer, _counts: only used for models.

    Raises:
        UsageError: it is of another kind.
        SpeculantError: it cannot be loaded, or does not match the target.
    """
    loaded = load_head(source, target)
    if loaded.kind != kind:
        raise UsageError(f"the head in {source} is of kind {loaded.kind}, not {kind}.")
    assert isinstance(loaded.head, nn.Module)
    return loaded.head
