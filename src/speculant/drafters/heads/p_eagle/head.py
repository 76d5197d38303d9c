"""P-EAGLE: an EAGLE-3 head that drafts all depths in one pass, from mask tokens (vllm-project/speculators, peagle).

Depth d > 0 is a row at position i + d below the last committed row i: it reads the embedding of the mask token and a
trained state, `mask_hidden`, instead of the target's, and attends to all committed rows and to the mask rows above it.
No depth depends on a drafted token, so all nodes of a level have the same distribution.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from speculant.drafters.heads.block import BlockState, UnconditionedBlockHead
from speculant.drafters.heads.eagle3.head import Eagle3Head, Eagle3Shape
from speculant.drafters.heads.feature_rows import NewFeatureRows
from speculant.drafters.heads.feature_state import FeatureState
from speculant.drafters.heads.head import HeadState, TargetParts
from speculant.drafters.heads.step import GrownDraft
from speculant.drafters.models.shapes import GrowthPlan


class PEagleHead(UnconditionedBlockHead, Eagle3Head):
    """The weights of EAGLE-3, plus `mask_hidden`."""

    depth: int

    def __init__(self, shape: Eagle3Shape, *, mask_token: int, depth: int, ids: Tensor | None = None) -> None:
        """Build a head with random weights.

        Args:
            shape: shape of the head.
            mask_token: token that the rows below the last committed one read.
            depth: number of tokens it drafts.
            ids: Int64[V'], target tokens that it can draft; None for all.
        """
        Eagle3Head.__init__(self, shape, ids=ids)
        self.mask_token, self.depth = mask_token, depth
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, len(shape.taps) * shape.target_hidden))

    def open(self, first: int, target: TargetParts) -> HeadState:
        return PEagleState(self, target, first)

    def grow_whole_all(
        self, states: Sequence[HeadState], plans: Sequence[GrowthPlan], temperatures: Sequence[float]
    ) -> list[GrownDraft | None]:
        return [None] * len(states)  # no draft grows in steps


class PEagleState(BlockState, FeatureState):
    """State of one text; its block is the logits after the last committed row, and those of the masks."""

    def __init__(self, head: PEagleHead, target: TargetParts, first: int) -> None:
        BlockState.__init__(self)
        FeatureState.__init__(self, head, target, first)
        self._masked = head

    def take_root(self, logits: Tensor) -> None:
        super().take_root(logits)
        self.forget_block()

    def run_blocks(self, states: Sequence[BlockState]) -> list[Tensor]:
        own = [state for state in states if isinstance(state, PEagleState)]
        roots, head = [FeatureState.start(state) for state in own], self._masked
        rows = head.depth - 1
        if not rows:
            return roots
        masks = torch.full((rows * len(own),), head.mask_token, device=roots[0].device)
        found = self.run(head.embed(masks, self.target), [state.add_masks() for state in own])
        for state in own:
            state.cache.drop()
        return [torch.cat(each) for each in zip(roots, found, strict=True)]

    def add_masks(self) -> NewFeatureRows:
        """Reserve the rows of the masks."""
        return self.branch(range(-1, self._masked.depth - 2), self._masked.fuse_states(self._masked.mask_hidden[0]))

    def drop(self) -> None:
        super().drop()
        self.cache.drop()

    def crop(self, length: int) -> None:
        super().crop(length)
        self.forget_block()
