"""New Medusa heads for a target.

Residual blocks begin as the identity, so a head begins with what the target itself predicts for the root.
"""

from __future__ import annotations

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.medusa.head import MedusaHead, MedusaShape
from speculant.drafters.heads.training.shapes import HEADS, copy_projections


def new_medusa(target: TargetParts, heads: int = HEADS, *, blocks: int = 1, own: bool = False) -> MedusaHead:
    """Return Medusa heads for a target.

    Args:
        target: of the heads.
        heads: how many.
        blocks: residual blocks of each.
        own: whether each has a copy of the target's output projection, as in the paper; else the target's is used,
            which takes V D less weights for each head.
    """
    head = MedusaHead(
        MedusaShape(
            hidden=target.hidden_size,
            vocabulary=target.vocabulary,
            heads=heads,
            blocks=blocks,
            projection="own" if own else "target",
        )
    )
    copy_projections(head, target)
    return head
