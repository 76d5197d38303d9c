"""Training of P-EAGLE: all depths from mask tokens (vllm-project/speculators, peagle).

Every anchor is followed by all its mask rows; the authors drop some of them at random, to save memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from speculant.core.tree import Int64
from speculant.drafters.heads.eagle3.recipe import Eagle3Recipe, begin_as_target, eagle3_shape
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.p_eagle.head import PEagleHead


class PEagleRecipe(Eagle3Recipe):
    """See `drafters.heads.training.recipe.Recipe`."""

    head: PEagleHead

    def __init__(self, head: PEagleHead, depth: int = 8) -> None:
        """Set the head, and the number of depths that are trained, at most those it drafts."""
        super().__init__(head, min(depth, head.depth))

    def _next_row(self, tokens: Tensor, found: Tensor, target: TargetParts) -> tuple[Tensor, Tensor]:
        masks = torch.full_like(tokens, self.head.mask_token)
        return self.head.embed(masks, target), self.head.fuse_states(self.head.mask_hidden[0]).expand_as(found)


def new_p_eagle(
    target: TargetParts, *, counts: Int64, depth: int, layers: int = 2, vocabulary: int = 0, own_output: bool = True
) -> PEagleHead:
    """Return a head that drafts all depths in one pass.

    Args:
        target: target of the head.
        counts, vocabulary, own_output: as for `new_eagle3`.
        depth: number of tokens it drafts.
        layers: number of decoder layers.
    """
    shape, ids = eagle3_shape(target, counts, vocabulary, own_output, layers)
    head = PEagleHead(shape, mask_token=int(counts.argmin()), depth=depth, ids=ids)
    begin_as_target(head, target)
    return head
