"""Checkpoints of PARD: ordinary causal models whose config names a mask token, `pard_token`.

They are loaded as models, with their caches, so `api.heads.open_head` opens them; here they are only found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from speculant.core.errors import UsageError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.head import Head, TargetParts


def is_pard(config: Mapping[str, Any]) -> bool:
    """Whether a config is of such a model."""
    return config.get("pard_token") is not None


def matches(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is one of these."""
    return is_pard(checkpoint.config)


def load(checkpoint: Checkpoint, _target: TargetParts) -> Head:
    """Refuse it: the weights alone draft nothing.

    Raises:
        UsageError: always.
    """
    raise UsageError(f"{checkpoint.source} is a PARD model, which drafts as a model: open it by `open_head`.")
