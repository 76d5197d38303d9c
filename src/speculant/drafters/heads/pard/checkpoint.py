"""Checkpoints of PARD: ordinary causal models whose config has a mask token, `pard_token`.

They are loaded as models, with their caches, so `api.heads.open_head` opens them; here they are only recognised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from speculant.core.errors import UsageError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.head import Head, TargetParts


def is_pard(config: Mapping[str, Any]) -> bool:
    """Return whether a config is a PARD model's."""
    return config.get("pard_token") is not None


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is a PARD model's."""
    return is_pard(checkpoint.config)


def load(checkpoint: Checkpoint, _target: TargetParts) -> Head:
    """Reject the checkpoint: its weights alone cannot draft.

    Raises:
        UsageError: always.
    """
    raise UsageError(f"{checkpoint.source} is a PARD model, which drafts as a model: open it with `open_head`.")
