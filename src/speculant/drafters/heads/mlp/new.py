"""New MLP speculators for a target."""

from __future__ import annotations

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.mlp.head import MLPHead, MLPShape
from speculant.drafters.heads.training.shapes import HEADS


def new_mlp(target: TargetParts, steps: int = HEADS, *, inner: int = 0, tied: bool = False) -> MLPHead:
    """Return an MLP speculator for a target, with a state of D numbers unless `inner` says otherwise."""
    return MLPHead(
        MLPShape(
            hidden=target.hidden_size,
            inner=inner or target.hidden_size,
            vocabulary=target.vocabulary,
            steps=steps,
            tied=tied,
            scaled=True,
        )
    )
