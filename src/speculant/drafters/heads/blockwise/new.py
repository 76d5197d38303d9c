"""New blockwise heads for a target, which begin as the identity."""

from __future__ import annotations

from speculant.drafters.heads.blockwise.head import BlockwiseHead
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.training.shapes import HEADS


def new_blockwise(target: TargetParts, heads: int = HEADS, *, inner: int = 0) -> BlockwiseHead:
    """Return blockwise heads for a target, each with D inner states unless `inner` says otherwise."""
    return BlockwiseHead(target.hidden_size, inner or target.hidden_size, heads)
